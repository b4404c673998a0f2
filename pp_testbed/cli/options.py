"""What commands have in common: their options, and what is read from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pp_testbed.cli.app import errors, escaped, plain_errors
from pp_testbed.engine.provenance import cores
from pp_testbed.errors import UsageError, unknown
from pp_testbed.report import FORMATS

if TYPE_CHECKING:
    import pandas as pd


def plainly(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A check of an option's value, before the work, as typer wants it."""

    def checked(value: Any) -> Any:
        with plain_errors():
            check(value)
        return value

    return checked


def check_figure(figure: Path | None) -> None:
    """Raise a UsageError unless a picture can be written."""
    if figure is None:
        return
    if figure.suffix not in (".png", ".pdf", ".svg"):
        raise UsageError(f"the picture {figure}: expected a name that ends in .png, .pdf or .svg")
    if not figure.parent.is_dir():
        raise UsageError(f"the picture {figure}: there is no directory {figure.parent}")


def check_format(format: str) -> None:
    """Raise a UsageError unless tables can be printed so."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)


By = Annotated[str, typer.Option(help="Columns to break the table down by: num_train,temperature.")]
Baseline = Annotated[str, typer.Option(help="The method in the denominator of the ratio.")]
Format = Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}.", callback=plainly(check_format))]
Jobs = Annotated[int | None, typer.Option(min=1, help="Worker processes; one per core if not given.")]
Methods = Annotated[
    str, typer.Option(help="Names (see `pp-testbed methods`) or my_file.py:NAME, with commas; else five.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a hyperparameter, as in mlp.l2=10.")
]
Seeds = Annotated[str, typer.Option(help="Only these seeds, as in 0-4 or 0,3.")]
Preset = Annotated[
    str,
    typer.Option(help="Defaults of methods: tuned, paper (the publications'), or a file of `tune --save`."),
]
ProblemName = Annotated[
    str,
    typer.Option("--problem", help="A problem by its name, or a model: my_file.py:NAME, with --num-train."),
]
NumTrain = Annotated[
    str, typer.Option(help="Training data: 50, or 10,100,all; 100, of data all, if not given.")
]
InputDim = Annotated[int | None, typer.Option(min=1, help="Inputs of a model that does not say how many.")]
Data = Annotated[
    str, typer.Option(help="A table (.csv, .parquet), or a data set; see `pp-testbed data list`.")
]
Target = Annotated[str, typer.Option(help="The column of labels in a table.")]
Test = Annotated[Path | None, typer.Option(help="Another table, of labels that are held out.")]
Drop = Annotated[str, typer.Option(help="Columns of a table that are left out, with commas.")]
Kind = Annotated[str, typer.Option(help="Labels of a table are classes, numbers, or auto.")]
Model = Annotated[str, typer.Option(help="A model of data, my_file.py:NAME; else a network.")]
Temperature = Annotated[float | None, typer.Option(help="Of the network; 0.1 if not given.")]
ReportFile = Annotated[
    Path | None, typer.Option(help="The report's file; OUT.html, beside the results, if not given.")
]
SuiteName = Annotated[
    str, typer.Option("--suite", help="The problems; see `pp-testbed suites`; 2d-lite if nothing is said.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")]
Inputs = Annotated[int | None, typer.Option(min=20, help="Test inputs of each problem; 3000 if not given.")]
Draws = Annotated[
    int | None, typer.Option(min=1, help="Functions drawn from a posterior; 1000 if not given.")
]
Out = Annotated[Path, typer.Option(help="The directory of results; a run goes on where it was.")]
Results = Annotated[Path, typer.Argument(help="A directory of results.")]
Agents = Annotated[str, typer.Option(help="Only these; all but oracle, uniform and prior if not given.")]
Figure = Annotated[
    Path | None,
    typer.Option(help="Draw it into this file (.png, .pdf or .svg).", callback=plainly(check_figure)),
]
SbcOption = Annotated[
    Path | None, typer.Option("--sbc", help="A directory of `pp-testbed sbc`, to be shown with it.")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="The directory of references.")]
ExecutorName = Annotated[
    str, typer.Option("--executor", help="local, or dask: a cluster of this machine, or that of --scheduler.")
]
Scheduler = Annotated[str, typer.Option(help="The address of a Dask scheduler, as in tcp://10.0.0.1:8786.")]


def report_beside(out: Path, report: Path | None) -> Path:
    """The file of a run's report, beside its results if none is given; it is sure that it can be written."""
    from pp_testbed.engine.store import create_directory
    from pp_testbed.report.page import check_report

    page = report or out.resolve().with_name(f"{out.resolve().name}.html")
    if report is None:
        create_directory(page.parent, "a report")
    check_report(page)
    return page


BATCH = 10  # labels of a joint score
OF_DATA = ("target", "test", "drop", "kind", "model", "temperature")  # what --data may be said besides


def executor_of(name: str, scheduler: str, jobs: int | None) -> Any:
    """Where a command runs: in so many processes of this machine, or with Dask."""
    if name not in ("local", "dask"):
        raise unknown("executor", name, ("local", "dask"))
    if scheduler or name == "dask":
        from pp_testbed.engine.dask import Dask

        return Dask(scheduler=scheduler, processes=jobs or cores())
    from pp_testbed.engine.local import Local

    return Local(jobs or cores())


def selected(suite: str, seeds: str, limit: int | None) -> Any:
    """The problems of a suite that were asked for."""
    from pp_testbed.problems.suites import suite as named_suite

    selected = named_suite(suite)
    if seeds:
        selected = selected.filter(seed=numbers(seeds))
        if not len(selected):
            raise UsageError(f"suite {suite} has no problem with seed {seeds}")
    return selected.limit(limit) if limit else selected


def suite_of(
    suite: str, problem: str, data: str, seeds: str, num_train: str, limit: int | None, **options: Any
) -> Any:
    """The problems that a command line asks for: a suite's, those of a model, or those of data.

    Args:
        options: `target`, `test`, `drop` and `kind` of a table, `model` and `temperature` of data,
            `input_dim` of a model.
    """
    from pp_testbed.problems.suites import Suite

    if sum(map(bool, (suite, problem, data))) > 1:
        raise UsageError("--suite, --problem and --data are three ways to say the same; expected one of them")
    known = ("input_dim",) if problem else OF_DATA if data else ()
    given = [name for name, value in options.items() if value not in (None, "", "auto")]
    if ignored := [name for name in given if name not in known]:
        raise UsageError(f"--{ignored[0].replace('_', '-')} does not apply here; see --help")
    if problem:
        made = _of_model(problem, seeds, num_train, options["input_dim"])
        return Suite(problem, tuple(made[:limit]))
    if data:
        made = _of_data(data, seeds, num_train, options)
        return Suite(made[0].data.name, tuple(made[:limit]))
    if num_train:
        raise UsageError("--num-train is of --problem and --data; a suite says itself how many")
    return selected(suite or "2d-lite", seeds, limit)


def _of_model(problem: str, seeds: str, num_train: str, input_dim: int | None) -> list[Any]:
    from pp_testbed.models.own import own_model
    from pp_testbed.models.user_files import FileObject
    from pp_testbed.problems.named import of_name
    from pp_testbed.problems.synthetic import Problem

    if "/T" in problem.rpartition(":")[2] or FileObject.parse(problem) is None:
        if seeds or num_train:
            raise UsageError(
                f"{problem} is one problem, which says its data and seed; expected no more of them"
            )
        return [of_name(problem)]
    model = own_model(problem, input_dim=input_dim)
    sizes = whole_numbers("--num-train", num_train or "100")
    return [Problem(model, size, seed) for size in sizes for seed in sorted(numbers(seeds or "0"))]


def _of_data(data: str, seeds: str, num_train: str, options: dict[str, Any]) -> list[Any]:
    from pp_testbed.problems.data import of_data
    from pp_testbed.problems.tables import words_on

    table = data_of(data, options["target"], options["drop"], options["kind"], options["test"])
    for line in words_on(table) if table.notes else ():
        complain(line)
    sizes: list[int | None] = []
    for word in (num_train or "all").split(","):
        sizes += [None] if word == "all" else list(whole_numbers("--num-train", word))
    given = {"model": options["model"] or None, "temperature": options["temperature"]}
    chosen = sorted(numbers(seeds or "0"))
    made = [of_data(table, num_train=size, seed=seed, **given) for size in sizes for seed in chosen]
    if (fewest := min(one.num_test for one in made)) < BATCH:
        raise UsageError(f"{data} has {fewest} rows to be judged on; expected at least {BATCH}")
    return made


def data_of(data: str, target: str, drop: str, kind: str, test: Path | None) -> Any:
    """A data set by its name, or a table of a file."""
    from pp_testbed.problems.datasets import data_set
    from pp_testbed.problems.tables import read_table

    if Path(data).suffix not in (".csv", ".parquet", ".pq"):
        if target or drop or test:
            raise UsageError(f"--target, --drop and --test are of tables; {data} is a data set")
        return data_set(data)
    if not target:
        raise UsageError(f"{data}: say which column has the labels, as in --target NAME")
    return read_table(data, target, drop=names(drop), kind=kind, test=test)


def numbers(text: str) -> set[int]:
    """`0-2,5` as {0, 1, 2, 5}."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            several = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            several = range(0)
        if not several:
            raise UsageError(f"--seeds {text}: expected numbers, as in 0-4 or 0,3")
        numbers.update(several)
    return numbers


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """`50,50` as (50, 50)."""
    try:
        made = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        made = ()
    if not made:
        raise UsageError(f"{option} {text}: expected whole numbers, as in 10,20")
    return made


def names(text: str) -> list[str]:
    """`a,b` as [a, b]."""
    return [name for name in text.split(",") if name]


def complain(line: str) -> None:
    """Say something on the standard error."""
    errors.print(escaped(line))


def results_of(directory: Path) -> pd.DataFrame:
    """The results of a directory, or of a file, of which there must be some."""
    from pp_testbed.engine.store import read_results
    from pp_testbed.report.leaderboard import without_superseded
    from pp_testbed.studies.scoring import RESULTS

    frame = read_results(directory, RESULTS, complain)
    if frame.empty:
        raise UsageError(f"there are no results in {directory}")
    return without_superseded(frame)


def calibrations_of(directory: Path | None) -> Any:
    """What `pp-testbed sbc` left in a directory, if one is given."""
    if directory is None:
        return ()
    from pp_testbed.studies.calibration import calibrations

    return calibrations(directory, complain)


def near(path: Path) -> Path:
    """A path as seen from here, where it is below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def frame_of(path: Path, source: str) -> pd.DataFrame:
    """What a directory of results, bandits or active learning has."""
    if source == "results":
        return results_of(path)
    if source == "bandits":
        from pp_testbed.studies.bandits import read_bandits

        return read_bandits(path, complain)
    from pp_testbed.studies.active import read_active

    return read_active(path, complain)


def specs_of(methods: str, settings: list[str] | None, preset: str = "tuned") -> list[Any]:
    """Methods of the command line with their settings."""
    from pp_testbed.inference.specs import MethodSpec

    known = names(methods)
    options: dict[str, list[tuple[str, str]]] = {name: [] for name in known}
    for setting in settings or ():
        left, equals, value = setting.partition("=")
        name, dot, option = left.rpartition(".")
        if not (equals and dot):
            raise UsageError(f"--set {setting}: expected METHOD.OPTION=VALUE, as in mlp.l2=10")
        if name not in options:
            raise unknown("method in --set (it is not among --methods)", name, known)
        options[name].append((option, value))
    return [MethodSpec(name, tuple(options[name]), preset) for name in known]


def evaluation_of(inputs: int | None, draws: int | None) -> Any:
    """What is measured, of so many test inputs and draws."""
    from pp_testbed.evaluation.terms import Evaluation

    default = Evaluation()
    inputs, draws = inputs or default.num_batches * default.width, draws or default.num_draws
    if inputs % default.width:
        raise UsageError(f"--inputs {inputs}: expected a multiple of {default.width}, which make a batch")
    return Evaluation(num_batches=inputs // default.width, num_draws=draws)
