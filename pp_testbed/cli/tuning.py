"""The command that tunes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pp_testbed.cli import options as given
from pp_testbed.cli.app import command, errors, escaped
from pp_testbed.cli.output import print_table
from pp_testbed.errors import UsageError


def _check_save(save: Path | None) -> None:
    """Raise a UsageError unless this can be a file of presets."""
    if save is not None and (save.suffix != ".json" or not save.parent.is_dir()):
        raise UsageError(f"--save {save}: expected a .json file in a directory that is there")


Metric = Annotated[
    str, typer.Option(help="The mean score to minimise; kl_aggregate, of data nll_joint, if not given.")
]
Save = Annotated[
    Path | None,
    typer.Option(help="Put the best options into this JSON file.", callback=given.plainly(_check_save)),
]


@command()
def tune(
    method: Annotated[str, typer.Option(help="A name, or my_file.py:NAME.")],
    suite: Annotated[
        str, typer.Option(help="Its problems with other seeds; of data, parts of what is learnt from.")
    ] = "2d",
    sampler: Annotated[str, typer.Option(help="grid, random, tpe or gp.")] = "grid",
    trials: Annotated[int | None, typer.Option(min=1, help="In all; the grid, or 30, if not given.")] = None,
    metric: Metric = "",
    by: Annotated[str, typer.Option(help="Choose for each of these facts, as in input_dim,num_train.")] = "",
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Vary these, as in l2=0.1,1,10 (; for lists), not the method's sweep."),
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="tuning/METHOD-SAMPLER.journal if not given; or a .db file.")
    ] = None,
    save: Save = None,
    settings: given.Settings = None,
    seed: Annotated[int, typer.Option(help="Of the sampler.")] = 0,
    jobs: given.Jobs = None,
    executor: given.ExecutorName = "local",
    scheduler: given.Scheduler = "",
    format: given.Format = "table",
) -> None:
    """Tune a method's hyperparameters on problems that are never reported; a study goes on where it was.

    Examples:

      pp-testbed tune --method hypermodel

      pp-testbed tune --method mlp --suite tabular --metric nll --by model,num_train,seed --save mine.json
    """
    from pp_testbed.inference.registry import read_presets
    from pp_testbed.studies.tune import parse_grid
    from pp_testbed.studies.tune import tune as find

    specs = given.specs_of(method, settings)
    if len(specs) != 1:
        raise UsageError(f"--method {method}: expected one method")
    if save is not None and save.exists():
        read_presets(save)
    found = find(
        specs[0],
        suite=suite,
        sampler=sampler,
        trials=trials,
        metric=metric,
        by=given.names(by),
        study=study,
        grid=parse_grid(grid or []),
        seed=seed,
        executor=given.executor_of(executor, scheduler, jobs),
    )
    print_table(found.table(), format)
    errors.print(escaped(found))
    if save is not None:
        found.save(save, with_held=True)
