"""Tables from results: means over problems, standard errors across seeds, paired ratios.

`leaderboard` makes the numbers, a data frame; `render` makes them text. Where the numbers of a
single cell come from is the evaluator's business.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pp_testbed.engine.identity import config_hash, describe, without_digests
from pp_testbed.engine.store import OK
from pp_testbed.errors import UsageError, unknown
from pp_testbed.evaluation.aggregate import lead_of, mean_score, paired_difference, paired_ratio
from pp_testbed.evaluation.scores import OF_LABELS, OF_TRUTH, SCORES, SYMBOLS, Lead
from pp_testbed.evaluation.terms import Evaluation
from pp_testbed.inference.mcmc import NUTS
from pp_testbed.problems.suites import suite
from pp_testbed.report import FORMATS
from pp_testbed.studies.reference_files import references, settings_of

OPTIONAL = {"excess_kl_joint": "d¹⁰ − NUTS"}  # columns that are shown where there is something in them
# Osband et al., 2022: means over 210 problems of the same grid, other environments.
PUBLISHED = {
    "mlp": {"kl_marginal": 0.129, "kl_joint": 1.367},
    "ensemble": {"kl_marginal": 0.128, "kl_joint": 1.356},
    "dropout": {"kl_marginal": 0.128, "kl_joint": 1.347},
    "bbb": {"kl_marginal": 0.129, "kl_joint": 1.375},
    "hypermodel": {"kl_marginal": 0.130, "kl_joint": 1.107},
    "ensemble+": {"kl_marginal": 0.129, "kl_joint": 1.015},
    "sgmcmc": {"kl_marginal": 0.122, "kl_joint": 0.947},
}


def columns_of(frame: pd.DataFrame) -> dict[str, str]:
    """The scores that a table of results shows, and what they are called: those that lead, and others."""
    lead = lead_of(frame)
    others = [score.name for score in SCORES if score.place == "column"]
    of_numbers = {score.name for score in SCORES if "numbers" in score.needs}
    has_some = {name for name in others if name in frame and frame[name].notna().any()}
    usual = set() if has_some or lead is OF_LABELS else {name for name in others if name not in of_numbers}
    is_of_numbers = "kl_joint" in frame and frame.kl_joint.notna().any() and not has_some
    names = [name for name in others if name in has_some or (name in usual and not is_of_numbers)]
    return lead.symbols | {name: SYMBOLS[name] for name in names} | {"fit_seconds": "fit [s]"}


def versus(lead: Lead, baseline: str) -> dict[str, str]:
    """How a table compares with the baseline: a ratio of divergences, or a difference of likelihoods."""
    symbol = SYMBOLS[lead.joint]
    if lead is OF_TRUTH:
        return {"ratio": f"{symbol} / {baseline}"}
    return {"difference": f"{symbol} − {baseline}"}  # a likelihood of numbers can be below 0


def leaderboard(
    frame: pd.DataFrame,
    by: Sequence[str] = (),
    baseline: str = "mlp",
    *,
    references: pd.DataFrame | None = None,
    calibrations: Sequence[tuple[str, Any]] = (),
    published: bool = False,
) -> pd.DataFrame:
    """One row per method (and per group of `by`), best joint score first, methods that lack problems last.

    Each score is a mean over problems with, in `_stderr`, the standard error of that mean across
    seeds: T, temperature and model are the benchmark's choice, the seeds are its sample. `ratio` is the
    mean of kl_joint over that of the baseline on the problems that both have, `ratio_stderr` its
    paired standard error; of held-out labels it is `difference`, of nll_joint. `excess_kl_joint` is the mean
    of kl_joint minus that of the exact posterior on the problems that have a converged reference, paired too.

    Args:
        frame: results, as `pt.run` returns them or `pandas.read_parquet` reads them.
        by: columns of the frame to break the table down by, such as "num_train".
        baseline: the method in the denominator of the ratio.
        references: the table of `pt.references()`, which is read if this is None.
        calibrations: what `studies.calibration.calibrations` read; they become a column.
        published: whether to add what the paper reports of its agents, of results of the suite `2d`.
    """
    if published and set(frame.problem) != {problem.name for problem in suite("2d")}:
        raise UsageError("the published means are over the suite 2d, all of it; these results are of others")
    if published and (by or baseline not in PUBLISHED):
        raise UsageError("the published means are of all problems, relative to an agent of the paper")
    frame = without_superseded(frame)
    frame = frame.assign(
        method=method_labels(frame),
        excess_kl_joint=frame.kl_joint - exact_scores(frame, references),
        calibration_error=calibration_errors(frame, calibrations),
    )
    check_baseline(baseline, frame.method)
    lead, columns = lead_of(frame), list(columns_of(frame))
    for column in by:
        if column not in frame.columns:
            raise unknown("column", column, ("num_train", "temperature", "input_dim", "suite", "seed"))
    rows = []
    groups = frame.groupby(list(by), sort=True) if by else [((), frame)]
    for values, group in groups:
        reference = group[(group.method == baseline) & (group.status == OK)]
        places = _places(group, lead.joint)
        for method, cells in sorted(group.groupby("method", sort=False), key=lambda item: places[item[0]]):
            head = dict(zip(by, values, strict=True)) | {"method": method}
            paper = _published(str(method), baseline) if published else {}
            row = _summary(cells, reference, lead, columns)
            row["lacking"] = group.problem.nunique() - row["problems"]
            rows.append(head | row | paper)
    table = pd.DataFrame(rows)
    has_exact = frame.problem[frame.excess_kl_joint.notna()].nunique()
    table.attrs["exact"] = (has_exact, frame.problem.nunique())  # problems that have a reference, and all
    return table


def _places(group: pd.DataFrame, joint: str) -> dict[str, tuple[bool, float]]:
    """What the methods of a group are sorted by: whether they lack a problem, and how they score.

    A mean over the easy problems alone does not compare with others' means: scores count by how far they are
    from the mean, on the same problem, of the methods that lack none.
    """
    scores = group[group.status == OK].pivot_table(
        index="problem", columns="method", values=joint, dropna=False
    )
    scores = scores.reindex(group.problem.unique()).reindex(columns=group.method.unique())
    lacks = scores.isna().any()
    whole = scores.loc[:, ~lacks] if not lacks.all() else scores
    level = whole.replace(np.inf, np.nan).mean(axis=1).fillna(0.0)
    distance = scores.sub(level, axis=0).mean().fillna(np.inf)
    return {method: (bool(lacks[method]), float(distance[method])) for method in scores}


def words_on_incomplete(table: pd.DataFrame) -> str:
    """A sentence about the methods of a leaderboard that lack problems, if there are any."""
    lacking = table.method[table.lacking > 0].unique()
    if not len(lacking):
        return ""
    names = ", ".join(lacking)
    if set(lacking) == set(table.method):
        return f"Not on all problems: {names}. Such means do not compare: look at ratios."
    return (
        f"Not on all problems: {names}. Such means do not compare with others': these come last, by their "
        "distance to the others on the problems that they have."
    )


def words_on_exact(table: pd.DataFrame) -> str:
    """A sentence about the problems that have a reference, if there are some and not all."""
    known, number = table.attrs.get("exact", (0, 0))
    if not 0 < known < number:
        return ""
    return f"{OPTIONAL['excess_kl_joint']} is of the {known} of {number} problems that have a reference."


def check_baseline(baseline: str, methods: Iterable[str]) -> None:
    """Raise a UsageError if a baseline was asked for that is none of the methods; `mlp` need not be one.

    Methods are looked at only if one was asked for.
    """
    if baseline != "mlp" and baseline not in (known := sorted(set(methods))):
        raise unknown("baseline", baseline, known)


def without_superseded(frame: pd.DataFrame) -> pd.DataFrame:
    """Results without failures on a problem that other code of the same method and options has done.

    Code is in a configuration as a digest: a method that was mended is another one, of the same options. What
    is there twice is taken once, and of a problem of two revisions, which is another one, the later.
    """
    latest = frame[frame.revision == frame.groupby("problem").revision.transform("max")]
    if left_out := sorted(set(frame.method) - set(latest.method)):
        words = (
            f"results of {', '.join(left_out)} are of earlier revisions of these problems, and are left out"
        )
        warnings.warn(f"{words}: run them again", stacklevel=2)
    frame = latest.drop_duplicates(["problem", "method", "revision", "config_hash"])
    texts = {text: json.dumps(without_digests(json.loads(text))) for text in frame.config.unique()}
    options = frame.config.map(texts)
    keys = list(zip(frame.problem, frame.method, options, strict=True))
    is_good = (frame.status == OK).to_numpy()
    done = {key for key, good in zip(keys, is_good, strict=True) if good}
    again = np.array([key in done for key in keys], dtype=bool)
    return frame[is_good | ~again]


def _summary(
    cells: pd.DataFrame, reference: pd.DataFrame, lead: Lead, columns: Sequence[str]
) -> dict[str, Any]:
    good = cells[cells.status == OK]
    row: dict[str, Any] = {"problems": len(good), "failed": len(cells) - len(good)}
    for name in [*columns, *OPTIONAL]:
        there = good[good[name].notna()] if name in OPTIONAL else good
        row[name], stderr, _ = mean_score(there, name)
        if lead is OF_LABELS and len(there) == 1:  # what is left to chance is which rows were held out
            stderr = there.get(name + "_stderr", there[name] * np.nan).iloc[0]
        if name != "fit_seconds":  # which the cells of a batch share
            row[name + "_stderr"] = stderr
    row["calibration_error"] = good.calibration_error.mean()
    if lead is OF_TRUTH:
        row["ratio"], row["ratio_stderr"], _ = paired_ratio(good, reference)
    else:
        row["difference"], row["difference_stderr"], _ = paired_difference(good, reference, lead.joint)
    return row


def _published(method: str, baseline: str) -> dict[str, float]:
    """What the paper says of a method: scores, and the ratio to its baseline."""
    scores = dict(PUBLISHED.get(method, {}))
    if scores:
        scores["ratio"] = scores["kl_joint"] / PUBLISHED[baseline]["kl_joint"]
    names = ("kl_marginal", "kl_joint", "ratio")
    return {f"published_{name}": scores.get(name, float("nan")) for name in names}


def exact_cells(frame: pd.DataFrame, table: pd.DataFrame | None = None) -> pd.DataFrame:
    """The references of the problems of these results that were scored on the same inputs."""
    if table is None:
        table = references()
    # Only references of the default settings: a store may hold others.
    is_default = table.settings == config_hash(settings_of(NUTS()))
    exact = table[table.converged.astype(bool) & is_default].drop_duplicates("problem")
    alike = frame[is_scored_alike(frame)][["problem", "revision"]].drop_duplicates()
    return exact.merge(alike, on=["problem", "revision"])


def exact_scores(frame: pd.DataFrame, table: pd.DataFrame | None = None) -> pd.Series:
    """kl_joint of the reference of each row's problem, on the same inputs; NaN where there is none."""
    exact = exact_cells(frame, table).drop_duplicates("problem").set_index("problem")
    return frame.problem.map(exact.kl_joint).where(is_scored_alike(frame)).astype(float)


def is_scored_alike(frame: pd.DataFrame) -> pd.Series:
    """Which results were scored on the inputs of the references: those of the default evaluation."""
    default = describe(Evaluation())
    return frame.config.map(lambda config: json.loads(config).get("evaluation") == default)


def calibration_errors(frame: pd.DataFrame, calibrations: Sequence[tuple[str, Any]]) -> pd.Series:
    """The mean calibration error of each row's method over the settings at which it was measured."""
    errors: dict[str, list[float]] = {}
    for config, calibration in calibrations:
        errors.setdefault(config, []).append(calibration.error)
    means = {config: float(np.mean(values)) for config, values in errors.items()}
    methods = frame.config.map(lambda config: json.dumps(json.loads(config).get("method"), sort_keys=True))
    return methods.map(means).astype(float)


def method_labels(frame: pd.DataFrame) -> pd.Series:
    """Names of methods, made distinct by the settings in which configurations of one name differ.

    Configurations of presets that have options for each kind of problem are one method, if there is one for
    each problem; of several presets, if they have no problem in common.
    """
    labels: dict[tuple[str, str], str] = {}
    for method, group in frame.groupby("method"):
        configs = {
            row.config_hash: _flat(json.loads(row.config))
            for row in group.drop_duplicates("config_hash").itertuples()
        }
        presets = {identity: config[".preset"] for identity, config in configs.items() if ".preset" in config}
        pairs = group[["problem", "config_hash"]].drop_duplicates(ignore_index=True)
        pairs["preset"] = pairs.config_hash.map(presets)
        twice = set(pairs.preset[pairs.duplicated(["problem", "preset"])].dropna())
        presets = {identity: preset for identity, preset in presets.items() if preset not in twice}
        single = [config for identity, config in configs.items() if identity not in presets]
        keys = sorted({key for config in single for key in config})
        differing = [k for k in keys if len({str(c.get(k)) for c in single}) > 1]
        shared = pairs.problem[pairs.config_hash.isin(presets)].duplicated().any()
        for identity, config in configs.items():
            words = ", ".join(f"{key.rpartition('.')[2]}={config.get(key)}" for key in differing)
            if identity in presets:
                words = f"preset {presets[identity]}" if shared or single else ""
            labels[(str(method), identity)] = f"{method} ({words})" if words else str(method)
    keys_of_rows = zip(frame.method, frame.config_hash, strict=True)
    return pd.Series([labels[key] for key in keys_of_rows], index=frame.index, dtype=object)


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict):
        return {prefix: config}
    return {
        key: value for name, item in config.items() for key, value in _flat(item, f"{prefix}.{name}").items()
    }


def render(table: pd.DataFrame, style: str = "table", baseline: str = "mlp") -> Any:
    """A leaderboard as something to print: a rich table, or text in one of `FORMATS`."""
    return _styled(table, style, lambda: _cells(table, baseline))


def render_plain(table: pd.DataFrame, style: str = "table") -> Any:
    """Any data frame as something to print, in one of `FORMATS`."""

    def cells() -> tuple[list[str], list[list[str]], list[bool]]:
        numeric = [pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes]
        return list(table.columns), [[as_text(value) for value in row] for row in table.to_numpy()], numeric

    return _styled(table, style, cells)


def render_across(table: pd.DataFrame, style: str = "table") -> Any:
    """As `render_plain`; but for people, methods go across, and a value and its error share a cell."""
    if style in ("csv", "json"):
        return render_plain(table, style)
    names = [name for name in table.columns if not name.endswith(("_stderr", "_bias")) and name != "method"]
    heads = {name: f"{symbol} ({name})" for name, symbol in (OF_TRUTH.symbols | OF_LABELS.symbols).items()}
    rows = []
    for name in names:
        errors = table.get(name + "_stderr", pd.Series(np.nan, index=table.index))
        pairs = zip(table[name], errors, strict=True)
        rows.append(
            [heads.get(name, name), *(as_text(v) if np.isnan(e) else with_error(v, e) for v, e in pairs)]
        )
    return render_plain(pd.DataFrame(rows, columns=["", *table.method]), style)


def with_errors(table: pd.DataFrame) -> pd.DataFrame:
    """A table for people: columns whose names end in `_stderr` join those that they are of, as text."""
    names = [name for name in table.columns if not name.endswith("_stderr")]
    joined = {
        name: [with_error(*pair) for pair in zip(table[name], table[name + "_stderr"], strict=True)]
        if name + "_stderr" in table
        else table[name]
        for name in names
    }
    return pd.DataFrame(joined)


def _styled(
    table: pd.DataFrame, style: str, cells: Callable[[], tuple[list[str], list[list[str]], list[bool]]]
) -> Any:
    if style not in FORMATS:
        raise unknown("format", style, FORMATS)
    if style == "csv":
        return table.to_csv(index=False)
    if style == "json":
        return table.to_json(orient="records", indent=1)
    return {"table": _rich, "markdown": _markdown, "latex": _latex}[style](*cells())


def _cells(table: pd.DataFrame, baseline: str) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headings, cells as text, and which columns are numbers."""
    lead = lead_of(table)
    columns = columns_of(table) | versus(lead, baseline)
    optional = OPTIONAL | {"calibration_error": "SBC error"}
    columns |= {name: head for name, head in optional.items() if table[name].notna().any()}
    published = {
        "published_kl_marginal": "paper: d¹",
        "published_kl_joint": "paper: d¹⁰",
        "published_ratio": f"paper: d¹⁰ / {baseline}",
    }
    columns |= {name: head for name, head in published.items() if name in table}
    groups = list(table.columns[: table.columns.get_loc("problems")])
    heads = [*groups, "problems", *columns.values()]
    rows = []
    for row in table.to_dict("records"):
        cells = [as_text(row[group]) for group in groups]
        failed = f" (+{row['failed']} failed)" if row["failed"] else ""
        cells.append(f"{row['problems']}{failed}")
        cells += [with_error(row[name], row.get(name + "_stderr", float("nan"))) for name in columns]
        rows.append(cells)
    return heads, rows, [head != "method" for head in heads]


def as_text(value: Any) -> str:
    """A value of a table in four significant digits."""
    if isinstance(value, float):
        return "–" if np.isnan(value) else f"{value:.4g}".replace("inf", "∞").replace("-∞", "−∞")
    return str(value)


def with_error(value: float, error: float) -> str:
    """Value ± error, both to the second significant digit of the error, but at least three places."""
    if not np.isfinite(value):
        return as_text(value)
    if abs(value) >= 1e6:  # of a training that has diverged
        return f"{value:.3g}" if np.isnan(error) else f"{value:.3g} ± {error:.2g}"
    places = 3
    if np.isfinite(error) and error > 0:
        places = int(np.clip(1 - np.floor(np.log10(error)), 2, 4))
    if np.isnan(error):
        return f"{value:.{places}f}"
    return f"{value:.{places}f} ± {error:.{places}f}"


def _rich(heads: list[str], rows: list[list[str]], numeric: list[bool]) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head, right in zip(heads, numeric, strict=True):
        table.add_column(escape(head), justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))  # [s] is seconds here, and no style
    return table


def _markdown(heads: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    rule = ["---:" if right else "---" for right in numeric]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, rule, *escaped]) + "\n"


def _latex(heads: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    codes = {"_": "\\_", "%": "\\%", "&": "\\&", "#": "\\#", "±": "$\\pm$", "∞": "$\\infty$", "–": "--"}
    codes |= {"¹⁰,²": "$^{10,2}$", "¹⁰": "$^{10}$", "¹": "$^1$"}

    def escape(cell: str) -> str:
        for character, code in codes.items():
            cell = cell.replace(character, code)
        return cell

    lines = [" & ".join(map(escape, row)) + r" \\" for row in [heads, *rows]]
    columns = "".join("r" if right else "l" for right in numeric)
    rule = "\\hline"
    begin, end = f"\\begin{{tabular}}{{{columns}}}", "\\end{tabular}\n"
    return "\n".join([begin, rule, lines[0], rule, *lines[1:], rule, end])
