"""Commands about the exact posterior: compare, sbc, reference build, list, show and verify."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from pp_testbed.cli import options as given
from pp_testbed.cli.app import command, errors, escaped, references
from pp_testbed.cli.output import (
    draw,
    print_out,
    print_table,
    report_not_converged,
)
from pp_testbed.errors import UsageError


@command()
def sbc(
    method: Annotated[str, typer.Option(help="Names, or my_file.py:NAME, with commas.")] = "nuts",
    problems: Annotated[int, typer.Option(min=20, help="Fresh problems.")] = 200,
    num_train: Annotated[int, typer.Option(min=1, help="Data of each problem.")] = 10,
    problem: Annotated[
        str, typer.Option(help="A model of your own, my_file.py:NAME; else the 2-D MLP.")
    ] = "",
    input_dim: given.InputDim = None,
    temperature: given.Temperature = None,
    out: given.Out = Path("sbc"),
    jobs: given.Jobs = None,
    executor: given.ExecutorName = "local",
    scheduler: given.Scheduler = "",
    settings: given.Settings = None,
    preset: given.Preset = "tuned",
    figure: given.Figure = None,
    format: given.Format = "table",
) -> None:
    """Simulation-based calibration: are the ranks of the truth uniform?

    Examples:

      pp-testbed sbc --method nuts --problems 200 --num-train 10

      pp-testbed sbc --method mlp,mean-field,my_method.py:METHOD --figure sbc.png

      pp-testbed sbc --problem my_model.py:MODEL --method nuts
    """
    import pandas as pd

    from pp_testbed.studies.calibration import sbc as calibrate

    options: dict[str, Any] = {"model": problem} if problem else {}
    options |= {} if input_dim is None else {"input_dim": input_dim}
    made = [
        calibrate(
            spec,
            num_problems=problems,
            num_train=num_train,
            temperature=temperature,
            out=out,
            **options,
            executor=given.executor_of(executor, scheduler, jobs),
        )
        for spec in given.specs_of(method, settings, preset)
    ]
    print_table(pd.DataFrame([calibration.asdict() for calibration in made]), format)
    draw(figure, "calibration_ranks", made)


@command()
def compare(
    methods: given.Methods = "mlp,ensemble+",
    problem: given.ProblemName = "2d/T10-rho0.1-s0",
    num_train: given.NumTrain = "",
    input_dim: given.InputDim = None,
    store: given.StoreOption = None,
    settings: given.Settings = None,
    preset: given.Preset = "tuned",
    figure: given.Figure = None,
    draws: Annotated[
        int, typer.Option(min=0, help="Single draws that the figure shows of each posterior.")
    ] = 0,
    format: given.Format = "table",
) -> None:
    """Fit methods to one problem; print their scores and their distance to the exact posterior.

    Examples:

      pp-testbed compare --methods mlp,my_method.py:METHOD --problem 2d/T30-rho0.1-s0 --figure fields.png
    """
    from pp_testbed.report.leaderboard import render_across
    from pp_testbed.report.plots.posteriors import check_field
    from pp_testbed.studies.references import fits_beside, reference

    (of, *_) = given.suite_of("", problem, "", "", num_train, 1, input_dim=input_dim)
    exact = reference(of, store=store)
    if figure is not None:
        check_field(exact.problem)
    specs = given.specs_of(methods, settings, preset)
    with errors.status("fitting"):
        table, posteriors = fits_beside(exact, specs)
    print_out(render_across(table, format))
    draw(figure, "predictive_fields", exact.problem, posteriors | {"NUTS": exact.posterior}, draws)


@command(references, "build")
def reference_build(
    suite: given.SuiteName = "",
    problem: given.ProblemName = "",
    num_train: given.NumTrain = "",
    input_dim: given.InputDim = None,
    seeds: given.Seeds = "",
    max_num_train: Annotated[
        int | None, typer.Option(help="Only problems with at most so many data.")
    ] = None,
    store: given.StoreOption = None,
    jobs: given.Jobs = None,
    executor: given.ExecutorName = "local",
    scheduler: given.Scheduler = "",
    settings: given.Settings = None,
) -> None:
    """Build the references that are missing, chain by chain; a stopped build goes on where it was.

    Examples:

      pp-testbed reference build --problem 2d/T10-rho0.1-s0

      pp-testbed reference build --suite 2d --max-num-train 100 --jobs 2

      pp-testbed reference build --problem my_model.py:MODEL --num-train 50
    """
    from pp_testbed.inference.options import with_options
    from pp_testbed.inference.registry import method
    from pp_testbed.studies import reference_files, references

    if not problem:
        suite = suite or "smoke"
    asked = given.suite_of(suite, problem, "", seeds, num_train, None, input_dim=input_dim)
    selected = [one for one in asked if max_num_train is None or one.num_train <= max_num_train]
    if not selected:
        raise UsageError(f"no problem has at most {max_num_train} data")
    options = dict(given.specs_of("nuts", settings)[0].options)
    nuts = with_options(method("nuts"), options)
    paths = references.build_references(
        selected, store=store, method=nuts, executor=given.executor_of(executor, scheduler, jobs)
    )
    directory = store or reference_files.default_store()
    errors.print(f"{len(paths)} references are in {escaped(directory)}{os.sep}")
    pairs = zip(paths, selected, strict=True)
    report_not_converged([reference_files.load(path, one) for path, one in pairs])


@command(references, "list")
def reference_list(store: given.StoreOption = None, format: given.Format = "table") -> None:
    """List the references: those shipped with the package, and the store's."""
    from pp_testbed.studies.reference_files import default_store, references

    with warnings.catch_warnings(record=True) as ignored:
        warnings.simplefilter("always")
        table = references(store)
    for warning in ignored:
        errors.print(f"[bold red]warning:[/] {escaped(warning.message)}")
    columns = [
        "problem",
        "kl_joint",
        "rhat",
        "ess_bulk",
        "ess_tail",
        "divergent",
        "converged",
        "seconds",
        "origin",
    ]
    print_table(table[columns] if format == "table" else table, format)
    errors.print(f"the store is {escaped(store or default_store())}{os.sep}")


@command(references, "show")
def reference_show(
    problem: Annotated[str, typer.Argument(help="Such as 2d/T10-rho0.1-s0.")], store: given.StoreOption = None
) -> None:
    """Show a reference: how it was made, its scores and its diagnostics."""
    import json

    from pp_testbed.studies.references import reference

    found = reference(problem, store=store)
    verdict = found.diagnostics.verdict
    typer.echo(f"{found.problem.name}  {verdict}\n{found.path}\n\n{found.scores}\n\n{found.diagnostics}")
    typer.echo(f"\n{found.seconds:.0f} s of chains; {json.dumps(found.versions)}\n{found.settings}")


@command(references, "verify")
def reference_verify(
    problem: Annotated[str, typer.Argument(help="Such as 2d/T10-rho0.1-s0; all of the store if none.")] = "",
    store: given.StoreOption = None,
    format: given.Format = "table",
) -> None:
    """Derive diagnostics anew from what is stored, and run the beginning of a chain again."""
    from dataclasses import asdict

    import pandas as pd

    from pp_testbed.studies.reference_files import load, stored_files
    from pp_testbed.studies.references import reference, verify

    found = [reference(problem, store=store)] if problem else [load(path) for path in stored_files(store)]
    if not found:
        raise UsageError("there are no references in the store")
    checks = [verify(one) for one in found]
    print_table(pd.DataFrame([asdict(check) | {"passed": check.passed} for check in checks]), format)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)
