"""Commands that list what there is: methods, suites."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pp_testbed.cli import options as given
from pp_testbed.cli.app import command
from pp_testbed.cli.output import list_rows
from pp_testbed.errors import UsageError


@command()
def methods(
    preset: given.Preset = "tuned", format: Annotated[str, typer.Option(help="table or json.")] = "table"
) -> None:
    """List the methods and the hyperparameters that `--set` changes, with their defaults."""
    from dataclasses import fields

    from pp_testbed.inference.registry import METHODS
    from pp_testbed.inference.specs import MethodSpec, resolve_for_all

    rows = []
    for name, entry in METHODS.items():
        made: Any = resolve_for_all(MethodSpec(name, (), preset))
        options = {field.name: getattr(made, field.name) for field in fields(made)}
        settable = {
            option: list(value) if isinstance(value, tuple) else value
            for option, value in options.items()
            if isinstance(value, bool | int | float | str | tuple) and option != "name"
        }
        rows.append({"method": name, "what it is": entry.summary, "options": settable})
    list_rows(rows, format, "options")


@command()
def suites(
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name every problem.")] = False,
) -> None:
    """List the suites and how many problems each has."""
    from pp_testbed.problems.suites import SUITES, suite

    rows: list[dict[str, Any]] = []
    for name, (summary, _) in SUITES.items():
        try:
            problems = [problem.name for problem in suite(name)]
        except UsageError as error:  # of data that are not here
            rows.append(
                {"suite": name, "problems": 0, "what it is": f"{summary}; {str(error).partition(':')[0]}"}
            )
            continue
        row = {"suite": name, "problems": len(problems), "what it is": summary}
        rows.append(row | ({"names": problems} if verbose else {}))
    list_rows(rows, format, "names")
