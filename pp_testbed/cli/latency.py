"""The command about what predictions cost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pp_testbed.cli import options as given
from pp_testbed.cli.app import command, errors, escaped
from pp_testbed.cli.output import print_table
from pp_testbed.errors import UsageError


@command()
def latency(
    methods: given.Methods = "mlp,ensemble",
    problem: given.ProblemName = "2d/T10-rho0.1-s0",
    num_train: given.NumTrain = "",
    input_dim: given.InputDim = None,
    draws: Annotated[int, typer.Option(min=1, help="Functions of a prediction.")] = 100,
    calls: Annotated[int, typer.Option(min=1, help="Calls that are timed.")] = 1000,
    export: Annotated[
        Path | None, typer.Option(help="A directory to write what each method predicts to, for jax.export.")
    ] = None,
    settings: given.Settings = None,
    preset: given.Preset = "tuned",
    format: given.Format = "table",
) -> None:
    """Fit methods to one problem; print how long one thread takes to predict at one input.

    Times are of one function, and of a prediction by all of them one after another. A directory has
    a program of each method, which `pt.load_predictor` reads.

    Examples:

      pp-testbed latency --problem digits/Tall-s0 --methods mlp,ensemble,laplace --export programs/
    """
    os.environ["NPROC"] = "1"  # before JAX starts
    import pandas as pd

    from pp_testbed.engine.store import create_directory, file_words
    from pp_testbed.evaluation.latency import latency as measure
    from pp_testbed.inference.options import method_name
    from pp_testbed.inference.specs import resolve
    from pp_testbed.studies.cells import facts_of

    (of, *_) = given.suite_of("", problem, "", "", num_train, 1, input_dim=input_dim)
    if export is not None:
        create_directory(export, "programs")
        if there := sorted(file.name for file in export.glob("*.jax")):
            raise UsageError(f"{export} has {there[0]} already; give a directory without programs")
    rows, unwritten = [], 0
    for spec in given.specs_of(methods, settings, preset):
        method = resolve(spec, facts_of(of))
        name = method_name(method)
        with errors.status(f"fitting {name}"):
            posterior = method.fit(of.keys.fit, of.task)
            found = measure(posterior, of.task.x, num_draws=draws, calls=calls)
        if export is not None:
            unwritten += not _export(posterior, of.task, export / f"{file_words(name)}.jax", draws)
        rows.append({"method": name, **found.asdict()})
    table = pd.DataFrame(rows)
    if format == "table":  # of people, who do not count in seconds here
        micro = ["median", "p99", "prediction"]
        table = table.assign(**(table[micro] * 1e6).round(1)).rename(
            columns={name: f"{name} [µs]" for name in micro}
        )
    print_table(table, format)
    if unwritten:
        raise typer.Exit(1)


def _export(posterior: Any, task: Any, file: Path, draws: int) -> bool:
    """Whether a program is written; if not, why is said, and the others go on."""
    from pp_testbed.evaluation.latency import save_predictor

    try:
        save_predictor(posterior, task, file, num_draws=draws)
    except UsageError as error:
        errors.print(escaped(f"{file} is not written: {error}"))
        return False
    return True
