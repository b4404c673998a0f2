"""The report: results as one HTML file that opens from disk and fetches nothing.

`write_report` is the whole of it. Here tables and pictures are gathered; how they look is in `page.html`.
Text of users (names of methods, errors) is escaped by the template. The numbers are those of `leaderboard`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

import pp_testbed
from pp_testbed.engine.store import OK, write_whole
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.aggregate import lead_of, paired_difference
from pp_testbed.evaluation.scores import OF_LABELS, OF_TRUTH, SYMBOLS
from pp_testbed.report import plots
from pp_testbed.report.doubt import detection, heads_of
from pp_testbed.report.leaderboard import (
    OPTIONAL,
    columns_of,
    exact_cells,
    exact_scores,
    leaderboard,
    method_labels,
    versus,
    with_error,
    without_superseded,
    words_on_exact,
    words_on_incomplete,
)
from pp_testbed.report.parts import Cell, Section, Table, pictures_of, sortable, table_of
from pp_testbed.studies.reference_files import references as shipped_references
from pp_testbed.studies.scoring import RESULTS

MARK = "<!doctype html>\n<!-- a report of pp_testbed -->"  # files that begin like this may be replaced
WORDS = {  # on the scores that lead
    OF_TRUTH: "d¹ is the KL divergence from the truth of the prediction of one label, d¹⁰ of ten labels at "
    "ten inputs, d¹⁰,² of ten labels at inputs resampled from two. The ratio, and the distance to the",
    OF_LABELS: "NLL is the negative log likelihood of a label that was held out, NLL¹⁰ of ten together, "
    "NLL¹⁰,² of ten at inputs resampled from two, with their labels. The difference, and the distance to the",
}
LEVEL = 0.95  # of the interval that must not have 0 in it for a difference to be bold


def write_report(
    frame: pd.DataFrame,
    out: str | os.PathLike[str] = "report.html",
    *,
    baseline: str = "mlp",
    references: pd.DataFrame | None = None,
    calibrations: Sequence[tuple[str, Any]] = (),
) -> Path:
    """Write a report of results: one self-contained HTML file.

    Args:
        frame: results, as `pt.run` returns them or `pandas.read_parquet` reads them.
        out: the file. A report that is there is replaced, any other file is not.
        baseline: the method that others are compared to.
        references: the table of `pt.references()`, which is read if this is None.
        calibrations: what `studies.calibration.calibrations` read.

    Examples:
        >>> write_report(frame, "report.html").name
        'report.html'
    """
    path = Path(out)
    check_report(path)
    if frame.empty:
        raise UsageError("there are no results to report")
    frame = frame.astype({field.name: float for field in RESULTS.schema if field.type == "double"})
    template = files("pp_testbed.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["code"] = _code
    text = environment.from_string(template).render(_contents(frame, baseline, references, calibrations))
    try:
        write_whole(path, lambda file: file.write(f"{MARK}\n{text}".encode()))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return path


def check_report(path: Path) -> None:
    """Say before the work that a report cannot be written there."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no directory {path.parent}")
    if path.is_dir() or (path.exists() and not path.read_bytes().startswith(MARK.encode())):
        raise UsageError(f"{path} is there, and is not a report of pp_testbed; give another name")


def _code(text: str) -> Markup:
    """Escaped text, with what is between backticks as code."""
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", str(escape(text))))


def _contents(
    frame: pd.DataFrame, baseline: str, references: pd.DataFrame | None, calibrations: Sequence[Any]
) -> dict[str, Any]:
    """What the template shows."""
    if references is None:
        references = shipped_references()
    frame = without_superseded(frame)
    names = frame.method
    frame = frame.assign(method=method_labels(frame))  # from here on a method is one configuration
    good = frame[frame.status == OK]
    if baseline == "mlp" and baseline not in set(good.method) and len(good):
        variants = good.method[names[good.index] == "mlp"]
        baseline = str((variants if len(variants) else good.method).iloc[0])
    board = leaderboard(frame, baseline=baseline, references=references, calibrations=calibrations)
    sections, order = [_summary(board, baseline, good)], list(board.method)
    if len(good):
        sections += [
            _comparison(frame, good, order, baseline, references),
            _breakdown(frame, order, references),
            _exactness(frame, good, order, references),
            _confidence(frame) if lead_of(good) is OF_LABELS else _calibration(calibrations),
            _cost(frame, good, references),
            _diagnostics(good),
        ]
    sections += [_failures(frame), _repetition(frame)]
    suites = ", ".join(sorted(set(frame.suite.dropna()))) or "custom"
    return {
        "title": f"{_number(board.method, 'method')} on {_number(frame.problem, 'problem')} of {suites}",
        "failed": int((frame.status != OK).sum()),
        "cells": len(frame),
        "sections": sections,
        "version": pp_testbed.__version__,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _number(names: pd.Series, what: str) -> str:
    """How many different ones there are, in words."""
    number = names.nunique()
    return f"{number} {what}{'s' * (number != 1)}"


def _summary(board: pd.DataFrame, baseline: str, good: pd.DataFrame) -> Section:
    lead = lead_of(board)
    columns = lead.symbols | versus(lead, baseline) | OPTIONAL | {"calibration_error": "SBC error"}
    columns |= {name: head for name, head in columns_of(board).items() if name not in lead}
    shown = {name: head for name, head in columns.items() if board[name].notna().any()}
    but = ", but for accuracy" if "accuracy" in shown else ""
    text = (
        f"Means over problems with standard errors across seeds; the bars show both. Lower is better{but}. "
        f"{WORDS[lead]} exact posterior (NUTS), are paired by problem."
    )
    if not good.duplicated(["method", "kind"]).any():
        text += " There is one seed of each kind of problem here: the errors are between all problems."
        if lead is OF_LABELS and good.problem.nunique() == 1:
            text += " Of a single problem they are over the rows that were held out; run more seeds."
    for words in filter(None, (words_on_incomplete(board), words_on_exact(board))):
        text += f" {words}"
    return Section("Leaderboard", text, [table_of("leaderboard", board, ["method", "problems"], shown)])


def _comparison(
    frame: pd.DataFrame, good: pd.DataFrame, order: list[str], baseline: str, references: pd.DataFrame
) -> Section:
    pictures, notes = pictures_of(
        {
            f"Scores relative to {baseline}": lambda: plots.agents(frame, baseline, references=references),
            "One label against ten": lambda: plots.marginal_joint(frame, references=references),
        }
    )
    text = (
        f"{SYMBOLS[lead_of(good).joint]} of the row's method minus that of the column's, on the problems "
        "that both have, with its "
        f"standard error; bold where a {LEVEL:.0%} interval (Student's t) has no 0 in it. Of many pairs that "
        "are equal some are bold by chance: 5 in 100."
    )
    return Section("Paired differences", text, [_differences(good, order)], pictures, notes)


def _differences(good: pd.DataFrame, order: list[str]) -> Table:
    names = [name for name in order if name in set(good.method)]
    by_name = {name: good[good.method == name] for name in names}
    cells = {(name, name): Cell("") for name in names}
    joint = lead_of(good).joint
    long = []
    for one, other in combinations(names, 2):
        found = paired_difference(by_name[one], by_name[other], joint)
        (value, error, freedom), (low, high) = found, found.interval(LEVEL)
        is_strong = low > 0.0 or high < 0.0
        for pair, sign in (((one, other), 1.0), ((other, one), -1.0)):
            cells[pair] = Cell(with_error(sign * value, error), sortable(sign * value), is_strong=is_strong)
        long.append({"method": one, "other": other, "difference": value, "stderr": error, "df": freedom})
    rows = [[Cell(one, one), *(cells[one, other] for other in names)] for one in names]
    return Table(
        f"differences of {SYMBOLS[joint]}",
        ["method", *(f"− {name}" for name in names)],
        rows,
        pd.DataFrame(long),
    )


def _breakdown(frame: pd.DataFrame, order: list[str], references: pd.DataFrame) -> Section:
    tables = []
    words = {"num_train": "training data T", "temperature": "temperature ρ", "input_dim": "input dimension"}
    for column, word in words.items():
        if frame[column].nunique() > 1:
            board = leaderboard(frame, [column], references=references)
            tables.append(_across(board, column, word, lead_of(frame).joint, order))
    pictures, notes = pictures_of(
        {
            "Scores against the number of data": lambda: plots.data(frame, references=references),
            "Scores against the temperature": lambda: plots.temperature(frame, references=references),
        }
    )
    joint = SYMBOLS[lead_of(frame).joint]
    text = f"Mean {joint} for each value of what problems differ in, over the others."
    return Section("By data and temperature", text, tables, pictures, notes)


def _across(board: pd.DataFrame, column: str, word: str, score: str, order: Sequence[str]) -> Table:
    """A score with methods down, in this order, and the values of a column across."""
    values = sorted(board[column].unique())
    rows = []
    for method in filter(set(board.method).__contains__, order):
        cells = board[board.method == method].set_index(column).reindex(values)
        pairs = zip(cells[score], cells[score + "_stderr"], strict=True)
        number, total = int(cells.problems.sum()), board.groupby(column).problems.max().sum()
        name = method if number == total else f"{method} ({number} problems)"
        rows.append([Cell(name, name), *(Cell(with_error(*pair), sortable(pair[0])) for pair in pairs)])
    head = f"{word} ="
    names = [column, "method", "problems", score, score + "_stderr"]
    return Table(f"by {word}", [f"method \\ {head}", *(f"{value:g}" for value in values)], rows, board[names])


def _exactness(
    frame: pd.DataFrame, good: pd.DataFrame, order: list[str], references: pd.DataFrame
) -> Section:
    gap = exact_scores(good, references)
    known = good[gap.notna()]
    title = "Gap to the exact posterior"
    if known.empty:
        text = (
            "None of these problems has a converged NUTS reference that was scored alike; "
            "`pp-testbed reference build` makes them."
        )
        return Section(title, text)
    problems = known.problem.nunique()
    exact = exact_cells(good, references)
    text = (
        f"d¹⁰ minus that of NUTS on the generative model itself, on the {problems} of "
        f"{good.problem.nunique()} problems that have a converged reference (R-hat at most "
        f"{exact.rhat.max():.4f}, bulk ESS at least {exact.ess_bulk.min():.0f}, at most "
        f"{exact.divergent.max():.2%} divergent). The exact posterior is the floor in expectation, "
        "not on every problem."
    )
    board = leaderboard(frame[frame.problem.isin(set(known.problem))], ["num_train"], references=references)
    table = _across(board, "num_train", "training data T", "excess_kl_joint", order)
    return Section(title, text, [_gaps(known, exact), table])


def _gaps(known: pd.DataFrame, exact: pd.DataFrame) -> Table:
    """The mean gap of each method, and how much of it is for finite numbers of draws, by the jackknife."""
    rows = []
    for method, cells in known.groupby("method"):
        both = cells.merge(exact, on="problem", suffixes=("", "_exact"))
        value, error, _ = paired_difference(cells, exact)
        bias = (both.kl_joint_bias - both.kl_joint_bias_exact).mean()
        rows.append(
            {"method": method, "problems": len(both), "gap": value, "gap_stderr": error, "bias": bias}
        )
    table = pd.DataFrame(rows).sort_values("gap", ignore_index=True)
    columns = {"gap": "d¹⁰ − NUTS", "bias": "of which bias by finite draws, less that of NUTS"}
    return table_of("gap", table, ["method", "problems"], columns)


def _confidence(frame: pd.DataFrame) -> Section:
    pictures, notes = pictures_of(
        {
            "Accuracy against confidence": lambda: plots.reliability(frame),
            "Risk against coverage": lambda: plots.risk(frame),
            "Uncertainty here and elsewhere": lambda: plots.uncertainty(frame),
        }
    )
    text = (
        "On the diagonal a method is right as often as it says. Risk is the share of errors where only the "
        "most confident predictions are acted on, and others left to somebody else: the lower, the better a "
        "method knows what it does not know."
    )
    try:
        table = detection(frame)
    except UsageError:  # numbers
        return Section("Confidence", text, [], pictures, notes)
    text += (
        " The table says how doubt ranks errors, as areas and average precision (AP), where it is one minus "
        "confidence, total uncertainty (TU) or that of knowledge (MU); a column of a set says how often its "
        "inputs are doubted more than those held out."
    )
    tables = [table_of("doubt", table, ["method", "problems"], heads_of(table))]
    return Section("Confidence", text, tables, pictures, notes)


def _calibration(calibrations: Sequence[Any]) -> Section:
    title = "Calibration"
    if not calibrations:
        text = (
            "Calibration in the leaderboard is about single labels. Whether functions are calibrated is for "
            "simulation-based calibration to say: run `pp-testbed sbc`, and give its directory to "
            "`pp-testbed report` as `--sbc`."
        )
        return Section(title, text)
    made = [calibration for _, calibration in calibrations]
    frame = pd.DataFrame([calibration.asdict() for calibration in made])
    pictures, notes = pictures_of({"Ranks of the truth": lambda: plots.calibration_ranks(made)})
    text = (
        "Simulation-based calibration: over fresh problems the rank of the truth among a posterior's draws "
        "must be uniform."
    )
    columns = {name: name.replace("_", " ") for name in frame.columns if name != "method"}
    return Section(title, text, [table_of("calibration", frame, ["method"], columns)], pictures, notes)


def _cost(frame: pd.DataFrame, good: pd.DataFrame, references: pd.DataFrame) -> Section:
    joint = lead_of(good).joint
    pictures, notes = pictures_of({"Score against cost": lambda: plots.cost(frame, references=references)})
    rows = [
        {
            "method": label,
            "problems": len(cells),
            "fit_seconds": cells.fit_seconds.mean(),
            "evaluate_seconds": cells.evaluate_seconds.mean(),
            "total_seconds": (cells.fit_seconds + cells.evaluate_seconds).sum(),
            "num_draws": int(cells.num_draws.max()),
            joint: cells[joint].mean(),
        }
        for label, cells in good.groupby("method")
    ]
    columns = {
        "problems": "problems",
        "fit_seconds": "fit, s per problem",
        "evaluate_seconds": "evaluate, s per problem",
        "total_seconds": "all problems, s",
        "num_draws": "functions",
        joint: SYMBOLS[joint],
    }
    table = pd.DataFrame(rows).sort_values("total_seconds", ignore_index=True)
    text = (
        "Seconds of fitting do not include compilation where problems run in batches; they are of one core "
        "in workers, and of all cores without. Those of NUTS are of the machine that made the references. "
        "Below and to the left is better."
    )
    return Section(
        "Cost against quality", text, [table_of("cost", table, ["method"], columns)], pictures, notes
    )


def _diagnostics(good: pd.DataFrame) -> Section:
    joint = lead_of(good).joint
    rows = [
        {
            "method": label,
            "stderr": cells[f"{joint}_stderr"].mean(),
            "bias": cells[f"{joint}_bias"].mean(),
            "largest_bias": cells[f"{joint}_bias"].abs().max(),
            "labels": ", ".join(sorted(set(cells.labels))),
            "infinite": int(np.isinf(cells[joint]).sum()),
        }
        for label, cells in good.groupby("method")
    ]
    columns = {
        "stderr": f"mean standard error of {SYMBOLS[joint]} of a problem",
        "bias": "mean bias by finite draws",
        "largest_bias": "largest",
        "labels": "labels",
        "infinite": "infinite scores",
    }
    text = (
        "How precisely the scores were measured. The standard error is over test inputs; the bias is what a "
        "finite number of draws adds in expectation, by the jackknife. An ensemble is no draw, and has none."
    )
    return Section(
        "How well it was measured", text, [table_of("diagnostics", pd.DataFrame(rows), ["method"], columns)]
    )


def _failures(frame: pd.DataFrame) -> Section:
    failed = frame[frame.status != OK]
    if failed.empty:
        return Section("Failures", "None: every cell ended well.")
    groups = [
        {"method": label, "cells": len(cells), "such as": cells.problem.iloc[0], "error": str(error)}
        for (label, error), cells in failed.groupby(["method", "error"], sort=False, dropna=False)
    ]
    columns = {"cells": "cells", "such as": "such as", "error": "error"}
    table = table_of("failures", pd.DataFrame(groups), ["method"], columns)
    return Section("Failures", "Cells that failed are left out of every mean.", [table])


def _repetition(frame: pd.DataFrame) -> Section:
    made = frame.get("provenance", pd.Series(None, frame.index)).fillna("{}").value_counts()
    rows = []
    for text, cells in made.items():
        about = _parsed(str(text))
        command = about.pop("command", "not recorded")
        machine = about.pop("machine", "not recorded")
        versions = ", ".join(f"{name} {version}" for name, version in sorted(about.items()))
        rows.append({"cells": int(cells), "command": command, "machine": machine, "versions": versions})
    columns = {name: name for name in ("command", "machine", "versions")}
    commands = table_of("what made them", pd.DataFrame(rows), ["cells"], columns)
    configs = frame.drop_duplicates(["method", "version", "config"])[["method", "version", "config"]]
    options = table_of(
        "configurations", configs, ["method"], {"version": "version", "config": "configuration"}
    )
    grid = "; ".join(
        f"{sign} = {', '.join(f'{value:g}' for value in sorted(frame[column].unique()))}"
        for sign, column in (("d", "input_dim"), ("T", "num_train"), ("ρ", "temperature"))
    )
    models = ", ".join(sorted(set(frame.model)))
    text = (
        f"{frame.problem.nunique()} problems of {models}: "
        f"{grid}; seeds {_ranges(frame.seed)}. On one machine, in workers, the same "
        "command, version and seed give the same scores."
    )
    return Section("To repeat it", text, [commands, options])


def _parsed(text: str) -> dict[str, str]:
    """A provenance, which in a user's own frame may be any text."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"command": str(found)}


def _ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
