"""What commands print and draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from pp_testbed.cli.app import errors, escaped
from pp_testbed.errors import unknown

if TYPE_CHECKING:
    import pandas as pd


def show(
    frame: pd.DataFrame,
    by: tuple[str, ...],
    baseline: str,
    format: str,
    calibrations: Any = (),
    published: bool = False,
) -> None:
    """Print a leaderboard."""
    from pp_testbed.report.leaderboard import leaderboard as make
    from pp_testbed.report.leaderboard import render, words_on_exact, words_on_incomplete

    table = make(frame, by, baseline, calibrations=calibrations, published=published)
    print_out(render(table, format, baseline))
    for words in filter(None, (words_on_incomplete(table), words_on_exact(table))):
        errors.print(escaped(words))


def print_table(table: pd.DataFrame, format: str) -> None:
    """Print any table."""
    from pp_testbed.report.leaderboard import render_plain

    print_out(render_plain(table, format))


def print_with_errors(table: pd.DataFrame, format: str) -> None:
    """As `print_table`; for people, a value and its standard error share a cell."""
    from pp_testbed.report.leaderboard import with_errors

    print_table(with_errors(table) if format in ("table", "markdown", "latex") else table, format)


def print_out(shown: Any) -> None:
    """Print text, or a table of rich."""
    if isinstance(shown, str):
        typer.echo(shown, nl=not shown.endswith("\n"))
    else:
        # A table wider than the terminal wraps its lines; one that hides digits would be worse.
        width = Console(width=1000).measure(shown).maximum
        Console(width=max(Console().width, width), highlight=False).print(shown)


def draw(path: Path | None, name: str, *arguments: Any) -> None:
    """Draw a picture of `report.plots`, if there is a file to draw it into."""
    if path is not None:
        from pp_testbed.report import plots

        plots.save(getattr(plots, name)(*arguments), path)
        errors.print(f"the picture is {escaped(path)}")


def report_not_converged(found: list[Any]) -> None:
    """Say which references failed the gate and why, and end with 1 if any did."""
    failed = [one for one in found if not one.converged]
    for one in failed:
        reasons = "; ".join(one.diagnostics.failures)
        errors.print(f"[bold red]not converged:[/] {escaped(one.problem.name)}: {escaped(reasons)}")
    if failed:
        raise typer.Exit(1)


def report_failures(frame: pd.DataFrame) -> None:
    """Say which cells failed and why, and end with 1 if any did."""
    failed = frame[frame.status != "ok"].drop_duplicates(["problem", "config_hash", "version"])
    if failed.empty:
        return
    for (method, error), cells in failed.groupby(["method", "error"], sort=False):
        example = (
            f"{len(cells)} cells, such as {cells.problem.iloc[0]}"
            if len(cells) > 1
            else cells.problem.iloc[0]
        )
        errors.print(f"[bold red]failed:[/] {escaped(method)} on {escaped(example)}: {escaped(error)}")
    raise typer.Exit(1)


def list_rows(rows: list[dict[str, Any]], format: str, last: str) -> None:
    """Print rows as a table, with the column `last` below each row, or as JSON."""
    if format == "json":
        typer.echo(json.dumps(rows, indent=1))
        return
    if format != "table":
        raise unknown("format", format, ("table", "json"))
    console = Console(highlight=False)
    for row in rows:
        name, *words = [str(value) for key, value in row.items() if key != last]
        console.print(f"[bold]{escaped(name)}[/]  {escaped('  '.join(words))}")
        details = row.get(last) or ()
        if isinstance(details, dict):
            details = [f"{key}={value}" for key, value in details.items()]
        if details:
            console.print(f"    {escaped(', '.join(details))}", soft_wrap=True)
