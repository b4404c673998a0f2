"""Commands about scores: run, report, leaderboard, figure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pp_testbed.cli import options as given
from pp_testbed.cli.app import command, errors, escaped
from pp_testbed.cli.output import (
    report_failures,
    show,
)
from pp_testbed.errors import UsageError, unknown

DEFAULT_METHODS = "mlp,ensemble,ensemble+,mean-field"  # beside uniform, or the prior of numbers


@command()
def run(
    suite: given.SuiteName = "",
    problem: given.ProblemName = "",
    data: given.Data = "",
    target: given.Target = "",
    num_train: given.NumTrain = "",
    methods: given.Methods = "",
    out: given.Out = Path("results"),
    jobs: given.Jobs = None,
    executor: given.ExecutorName = "local",
    scheduler: given.Scheduler = "",
    settings: given.Settings = None,
    seeds: given.Seeds = "",
    limit: given.Limit = None,
    test: given.Test = None,
    drop: given.Drop = "",
    kind: given.Kind = "auto",
    model: given.Model = "",
    temperature: given.Temperature = None,
    input_dim: given.InputDim = None,
    inputs: given.Inputs = None,
    draws: given.Draws = None,
    preset: given.Preset = "tuned",
    baseline: given.Baseline = "mlp",
    report: given.ReportFile = None,
    format: given.Format = "table",
) -> None:
    """Score methods on a suite, print a leaderboard and write a report.

    Examples:

      pp-testbed run

      pp-testbed run --suite 2d --methods mlp,my_method.py:METHOD --set mlp.l2=10 --seeds 0-1 --limit 6

      pp-testbed run --problem my_model.py:MODEL --num-train 50 --seeds 0-9 --methods mlp,mean-field,nuts

      pp-testbed run --data patients.csv --target outcome --methods mlp,ensemble,ensemble+,bbb,laplace,nuts
    """
    from pp_testbed.inference.options import method_name
    from pp_testbed.inference.specs import resolve
    from pp_testbed.report.leaderboard import check_baseline
    from pp_testbed.report.page import write_report
    from pp_testbed.studies.scoring import run as run_suite

    page = given.report_beside(out, report)
    table = {"target": target, "test": test, "drop": drop, "kind": kind}
    options = table | {"model": model, "temperature": temperature, "input_dim": input_dim}
    problems = given.suite_of(suite, problem, data, seeds, num_train, limit, **options)
    first = "uniform" if all(one.num_classes for one in problems) else "prior"
    specs = given.specs_of(methods or f"{first},{DEFAULT_METHODS}", settings, preset)
    check_baseline(baseline, (method_name(resolve(spec)) for spec in specs))
    where, config = given.executor_of(executor, scheduler, jobs), given.evaluation_of(inputs, draws)
    frame = run_suite(problems, specs, out, executor=where, config=config)
    show(frame, (), baseline, format)
    write_report(frame, page, baseline=baseline)
    errors.print(f"results are in {escaped(out)}{os.sep}, a report of them in {escaped(given.near(page))}")
    report_failures(frame)


@command()
def report(
    results: given.Results = Path("results"),
    out: Annotated[Path, typer.Option(help="The HTML file; a report that is there is replaced.")] = Path(
        "report.html"
    ),
    baseline: given.Baseline = "mlp",
    sbc: given.SbcOption = None,
) -> None:
    """Write a report: one HTML file with tables, pictures and how to repeat it.

    Examples:

      pp-testbed report results/ --out report.html
    """
    from pp_testbed.report.page import check_report, write_report

    check_report(out)
    frame = given.results_of(results)
    write_report(frame, out, baseline=baseline, calibrations=given.calibrations_of(sbc))
    errors.print(f"the report is {escaped(out)}")
    report_failures(frame)


@command()
def leaderboard(
    results: given.Results = Path("results"),
    by: given.By = "",
    baseline: given.Baseline = "mlp",
    sbc: given.SbcOption = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show the paper's means over the 210 problems of 2d too.")
    ] = False,
    format: given.Format = "table",
) -> None:
    """Print the leaderboard of a results directory."""
    frame = given.results_of(results)
    groups = tuple(filter(None, by.split(",")))
    show(frame, groups, baseline, format, given.calibrations_of(sbc), published)
    report_failures(frame)


@command()
def figure(
    name: Annotated[str, typer.Argument(help="Which; all are listed above.")],
    directory: Annotated[
        Path | None, typer.Argument(help="Of results, of bandits or of active learning.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file (.png, .pdf, .svg); NAME.png if not given.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The method that others are relative to; each figure has its own.")
    ] = None,
) -> None:
    """Draw a figure of a directory.

    Of results: agents, marginal-joint, data, temperature, regimes, cost, dimensions, per-dimension; of
    held-out labels reliability and risk. Of hyperparameters: size, prior, sweep; these need several
    configurations of a method, such as those that `pp-testbed tune` leaves in tuning/cells. Of bandits:
    regret. Of active learning: learning.

    Examples:

      pp-testbed figure agents results/

      pp-testbed figure sweep tuning/cells --out sweep.pdf

      pp-testbed figure regret bandits/
    """
    import inspect

    from pp_testbed.report.plots import FIGURES, save

    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    picture = FIGURES[name]
    path = out or Path(f"{name}.png")
    given.check_figure(path)
    options = {} if baseline is None else {"baseline": baseline}
    if not options.keys() <= inspect.signature(picture.draw).parameters.keys():
        raise UsageError(f"figure {name} has no baseline: leave --baseline out")
    frame = given.frame_of(directory or Path(picture.source), picture.source)
    save(picture.draw(frame, **options), path)
    errors.print(f"{escaped(picture.summary)}: {escaped(path)}")
