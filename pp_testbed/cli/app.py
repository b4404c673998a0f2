"""The application: its entry point, and how mistakes and interruptions end.

Exit codes: 0 all done, 1 some cells failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import pp_testbed
from pp_testbed.errors import UsageError

app = typer.Typer(
    name="pp-testbed",
    help="Judge posterior approximations of neural networks.",
    epilog="Start with: pp-testbed run",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
references = typer.Typer(
    help="Reference posteriors by NUTS: build, list, show, verify.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(references, name="reference")
errors = Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A user's mistake is one line on the standard error and exit code 2; an interruption is no traceback."""
    try:
        yield
    except UsageError as error:
        errors.print(f"[bold red]error:[/] {escaped(error)}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("\ninterrupted; run the same command again to go on")
        raise typer.Exit(130) from None


def command(group: typer.Typer = app, name: str | None = None) -> Callable[[Any], Any]:
    """Make a function a command, whose mistakes are plain."""

    def register(function: Any) -> Any:
        @wraps(function)
        def plainly(*arguments: Any, **options: Any) -> Any:
            with plain_errors():
                return function(*arguments, **options)

        return group.command(name)(plainly)

    return register


def escaped(text: object) -> str:
    """Text as it is, for a console that reads markup."""
    return escape(str(text))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(pp_testbed.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Judge posterior approximations of neural networks."""
