"""Commands about data sets: data list, show, fetch."""

from __future__ import annotations

from typing import Annotated

import typer

from pp_testbed.cli import options as given
from pp_testbed.cli.app import app, command, errors, escaped
from pp_testbed.cli.output import print_table

data = typer.Typer(help="Data sets: list, show, fetch.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(data, name="data")


@command(data, "list")
def data_list(format: given.Format = "table") -> None:
    """List the data sets, and which are here."""
    import pandas as pd

    from pp_testbed.problems.datasets import SETS, is_here
    from pp_testbed.problems.downloads import SOURCES

    rows = [
        {
            "data set": name,
            "rows": entry.rows,
            "columns": entry.columns,
            "labels": f"{entry.num_classes} classes" if entry.num_classes else "numbers",
            "here": "yes" if is_here(name) else "can be fetched" if name in SOURCES else "no",
            "what it is": entry.summary,
        }
        for name, entry in SETS.items()
    ]
    print_table(pd.DataFrame(rows), format)


@command(data, "fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="Which, such as mnist; see `pp-testbed data list`.")],
) -> None:
    """Download data sets, where they are not here yet."""
    from pp_testbed.problems.datasets import data_directory
    from pp_testbed.problems.downloads import fetch

    for name in names:
        errors.print(f"{escaped(name)} is in {escaped(fetch(name, data_directory()))}")


@command(data, "show")
def data_show(
    name: Annotated[str, typer.Argument(help="A data set, or a table (.csv, .parquet) with --target.")],
    target: given.Target = "",
    drop: given.Drop = "",
    kind: given.Kind = "auto",
) -> None:
    """Show what a data set is, or what is made of a table: what is dropped, and what becomes a column."""
    from pp_testbed.problems.tables import words_on

    made = given.data_of(name, target, drop, kind, None)
    for line in words_on(made):
        typer.echo(line)
    if made.columns:
        typer.echo(f"columns: {', '.join(made.columns)}")
