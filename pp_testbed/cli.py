"""The command line: `pp-testbed run | leaderboard | bandit | active | tune | compare | sbc | ...`.

Only arguments and output are here; what the commands do is the Python API. Heavy imports happen
inside the commands, so that `--help` answers at once.

Exit codes: 0 all done, 1 some cells failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import pp_testbed
from pp_testbed.engine.provenance import cores
from pp_testbed.errors import UsageError, unknown

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_METHODS = "uniform,mlp,ensemble,ensemble+,mean-field"

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
reference_app = typer.Typer(
    help="Reference posteriors by NUTS: build, list, show, verify.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(reference_app, name="reference")
errors = Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def plain_errors() -> Any:
    """A user's mistake is one line on the standard error and exit code 2; an interruption is no traceback."""
    try:
        yield
    except UsageError as error:
        errors.print(f"[bold red]error:[/] {_escaped(error)}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("\ninterrupted; run the same command again to go on")
        raise typer.Exit(130) from None


def _escaped(text: object) -> str:
    from rich.markup import escape

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


By = Annotated[str, typer.Option(help="Columns to break the table down by: num_train,temperature.")]
Baseline = Annotated[str, typer.Option(help="The method in the denominator of the ratio.")]
Format = Annotated[str, typer.Option(help="table, csv, markdown, latex or json.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Worker processes; one per core if not given.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a hyperparameter, as in mlp.l2=10.")
]
Seeds = Annotated[str, typer.Option(help="Only these seeds, as in 0-4 or 0,3.")]
Preset = Annotated[
    str,
    typer.Option(help="Defaults of methods: tuned, paper (the publications'), or a file of `tune --save`."),
]
SbcOption = Annotated[
    Path | None, typer.Option("--sbc", help="A directory of `pp-testbed sbc`, to be shown with it.")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="The directory of references.")]


@app.command()
def run(
    suite: Annotated[str, typer.Option(help="The problems; see `pp-testbed suites`.")] = "2d-lite",
    methods: Annotated[
        str, typer.Option(help="Names (see `pp-testbed methods`) or my_file.py:NAME, with commas.")
    ] = DEFAULT_METHODS,
    out: Annotated[Path, typer.Option(help="The results directory; a run goes on where it was.")] = Path(
        "results"
    ),
    jobs: Jobs = None,
    settings: Settings = None,
    seeds: Seeds = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    inputs: Annotated[
        int | None,
        typer.Option(min=2, help="Test batches per problem (of ten inputs each); 300 if not given."),
    ] = None,
    draws: Annotated[
        int | None, typer.Option(min=1, help="Functions drawn from a posterior; 1000 if not given.")
    ] = None,
    preset: Preset = "tuned",
    baseline: Baseline = "mlp",
    report: Annotated[
        Path | None, typer.Option(help="The report's file; OUT.html, beside the results, if not given.")
    ] = None,
    format: Format = "table",
) -> None:
    """Score methods on a suite, print a leaderboard and write a report.

    Examples:

      pp-testbed run

      pp-testbed run --suite 2d --methods mlp,ensemble,ensemble+ --out results/ --preset paper

      pp-testbed run --methods mlp,my_method.py:METHOD --set mlp.l2=10 --seeds 0-1 --limit 6
    """
    with plain_errors():
        from pp_testbed.engine.store import create_directory
        from pp_testbed.inference.base import method_name
        from pp_testbed.inference.specs import resolve
        from pp_testbed.report.leaderboard import FORMATS, check_baseline
        from pp_testbed.report.page import check_report, write_report
        from pp_testbed.studies.scoring import run as run_suite

        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        page = report or out.resolve().with_name(f"{out.resolve().name}.html")
        if report is None:
            create_directory(page.parent, "a report")
        check_report(page)
        problems = _selected(suite, seeds, limit)
        specs = _specs(methods, settings or [], preset)
        check_baseline(baseline, (method_name(resolve(spec)) for spec in specs))
        frame = run_suite(problems, specs, out, jobs=jobs or cores(), config=_config(inputs, draws))
        _show(frame, (), baseline, format)
        write_report(frame, page, baseline=baseline)
        errors.print(f"results are in {_escaped(out)}{os.sep}, a report of them in {_escaped(_near(page))}")
        _report_failures(frame)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="A results directory.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The HTML file; a report that is there is replaced.")] = Path(
        "report.html"
    ),
    baseline: Baseline = "mlp",
    sbc: SbcOption = None,
) -> None:
    """Write a report: one HTML file with tables, pictures and how to repeat it.

    Examples:

      pp-testbed report results/ --out report.html
    """
    with plain_errors():
        from pp_testbed.report.page import check_report, write_report

        check_report(out)
        frame = _results(results)
        write_report(frame, out, baseline=baseline, calibrations=_calibrations(sbc))
        errors.print(f"the report is {_escaped(out)}")
        _report_failures(frame)


@app.command()
def leaderboard(
    results: Annotated[Path, typer.Argument(help="A results directory.")] = Path("results"),
    by: By = "",
    baseline: Baseline = "mlp",
    sbc: SbcOption = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show the paper's means over the 210 problems of 2d too.")
    ] = False,
    format: Format = "table",
) -> None:
    """Print the leaderboard of a results directory."""
    with plain_errors():
        frame = _results(results)
        groups = tuple(filter(None, by.split(",")))
        _show(frame, groups, baseline, format, _calibrations(sbc), published)
        _report_failures(frame)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="Which; all are listed above.")],
    directory: Annotated[
        Path | None, typer.Argument(help="Of results, of bandits or of active learning.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file (.png, .pdf, .svg); NAME.png if not given.")
    ] = None,
    baseline: Baseline = "mlp",
) -> None:
    """Draw a figure of a directory.

    Of results: agents, marginal-joint, data, temperature, regimes, cost. Of hyperparameters: size, prior,
    sweep; these need several configurations of a method, such as those that `pp-testbed tune` leaves in
    tuning/cells. Of bandits: regret. Of active learning: learning.

    Examples:

      pp-testbed figure agents results/

      pp-testbed figure sweep tuning/cells --out sweep.pdf

      pp-testbed figure regret bandits/
    """
    with plain_errors():
        import inspect

        from pp_testbed.report.plots import FIGURES, save

        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
        picture = FIGURES[name]
        path = out or Path(f"{name}.png")
        _check_figure(path, "--out")
        frame = _read(directory or Path(picture.source), picture.source)
        has_baseline = "baseline" in inspect.signature(picture.draw).parameters
        save(picture.draw(frame, baseline) if has_baseline else picture.draw(frame), path)
        errors.print(f"{_escaped(picture.summary)}: {_escaped(path)}")


@app.command()
def tune(
    method: Annotated[str, typer.Option(help="A name, or my_file.py:NAME.")],
    suite: Annotated[
        str, typer.Option(help="A suite; tuned on its grid with the seeds 1000 and 1001.")
    ] = "2d",
    sampler: Annotated[str, typer.Option(help="grid, random, tpe or gp.")] = "grid",
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of the study in all; the whole grid, or 30, if not given.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="The mean score to minimise: kl_aggregate (d¹ + d¹⁰/10), kl_joint, nll, ...")
    ] = "kl_aggregate",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", help="Vary these instead of the method's sweep, as in l2=0.1,1,10; with ; for lists."
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            help="A sampler's study, .journal or .db; tuning/METHOD-SAMPLER.journal if not given. Cells are "
            "kept beside it."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Put the best options into this JSON file.")] = None,
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="Of the sampler.")] = 0,
    jobs: Jobs = None,
    format: Format = "table",
) -> None:
    """Tune a method's hyperparameters on problems that are never reported; a study goes on where it was.

    Examples:

      pp-testbed tune --method hypermodel

      pp-testbed tune --method bbb --sampler tpe --trials 30

      pp-testbed tune --method my_method.py:METHOD --grid learning_rate=1e-3,1e-2
    """
    with plain_errors():
        from pp_testbed.inference.base import read_presets
        from pp_testbed.report.leaderboard import FORMATS
        from pp_testbed.studies.tune import parse_grid
        from pp_testbed.studies.tune import tune as find

        specs = _specs(method, settings or [])
        if len(specs) != 1:
            raise UsageError(f"--method {method}: expected one method")
        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        if save is not None:
            if save.suffix != ".json" or not save.parent.is_dir():
                raise UsageError(f"--save {save}: expected a .json file in a directory that is there")
            if save.exists():
                read_presets(save)
        found = find(
            specs[0],
            suite=suite,
            sampler=sampler,
            trials=trials,
            metric=metric,
            study=study,
            grid=parse_grid(grid or []),
            seed=seed,
            jobs=jobs or cores(),
        )
        _print_table(found.table(), format)
        best = found.best
        values = found.defaults | best["options"]
        options = ", ".join(f"{option}={value}" for option, value in values.items())
        errors.print(
            f"best on {found.suite}: {_escaped(options)} with {metric} "
            f"{best['score']:.4f} ± {best['stderr']:.4f}; {len(found.trials)} trials"
        )
        if found.elsewhere:
            errors.print(f"{found.elsewhere} trials are with other processes: run it again to see them")
        if save is not None:
            found.save(save)


@app.command()
def sbc(
    method: Annotated[str, typer.Option(help="Names, or my_file.py:NAME, with commas.")] = "nuts",
    problems: Annotated[int, typer.Option(min=20, help="Fresh problems.")] = 200,
    num_train: Annotated[int, typer.Option(min=1, help="Data of each problem.")] = 10,
    temperature: Annotated[float, typer.Option(help="Temperature of each problem.")] = 0.1,
    out: Annotated[Path, typer.Option(help="Where ranks are kept; a run goes on where it was.")] = Path(
        "sbc"
    ),
    jobs: Jobs = None,
    settings: Settings = None,
    preset: Preset = "tuned",
    figure: Annotated[Path | None, typer.Option(help="Draw the ranks into this file (.png, .pdf).")] = None,
    format: Format = "table",
) -> None:
    """Simulation-based calibration: are the ranks of the truth uniform?

    Examples:

      pp-testbed sbc --method nuts --problems 200 --num-train 10

      pp-testbed sbc --method mlp,mean-field,my_method.py:METHOD --figure sbc.png
    """
    with plain_errors():
        import pandas as pd

        from pp_testbed.studies.calibration import sbc as calibrate

        _check_figure(figure)
        made = [
            calibrate(
                spec,
                num_problems=problems,
                num_train=num_train,
                temperature=temperature,
                out=out,
                jobs=jobs or cores(),
            )
            for spec in _specs(method, settings or [], preset)
        ]
        _print_table(pd.DataFrame([calibration.asdict() for calibration in made]), format)
        _draw(figure, "calibration_ranks", made)


@app.command()
def compare(
    methods: Annotated[str, typer.Option(help="Names, or my_file.py:NAME, with commas.")] = "mlp,ensemble+",
    problem: Annotated[str, typer.Option(help="A problem that has a reference.")] = "2d/T10-rho0.1-s0",
    store: StoreOption = None,
    settings: Settings = None,
    preset: Preset = "tuned",
    figure: Annotated[Path | None, typer.Option(help="Draw the predictive fields into this file.")] = None,
    draws: Annotated[
        int, typer.Option(min=0, help="Single draws that the figure shows of each posterior.")
    ] = 0,
    format: Format = "table",
) -> None:
    """Fit methods to one problem; print their scores and their distance to the exact posterior.

    Examples:

      pp-testbed compare --methods mlp,my_method.py:METHOD --problem 2d/T30-rho0.1-s0 --figure fields.png
    """
    with plain_errors():
        import pandas as pd

        from pp_testbed.engine.jobs import one_line
        from pp_testbed.evaluation.compare import compare as compare_posterior
        from pp_testbed.evaluation.evaluator import evaluate
        from pp_testbed.inference.base import method_name
        from pp_testbed.inference.specs import resolve
        from pp_testbed.report.leaderboard import render_across
        from pp_testbed.studies.references import reference

        _check_figure(figure)
        exact = reference(problem, store=store)
        if figure is not None:
            from pp_testbed.report.plots.posteriors import check_field

            check_field(exact.problem)
        keys, task = exact.problem.keys, exact.problem.task
        rows, fields = [{"method": "nuts (reference)", **exact.scores.asdict()}], {}
        for spec in _specs(methods, settings or [], preset):
            made = resolve(spec)
            name = spec.text if method_name(made) in fields else method_name(made)
            with errors.status(f"fitting {_escaped(name)}"):
                try:
                    posterior = fields[name] = made.fit(keys.fit, task)
                    scores = evaluate(posterior, exact.problem, key=keys.evaluate).asdict()
                    distance = compare_posterior(posterior, exact).asdict()
                except Exception as error:
                    raise UsageError(f"{name}: {one_line(error)}") from error
                rows.append({"method": name, **scores, **distance})
        _print(render_across(pd.DataFrame(rows), format))
        _draw(figure, "predictive_fields", exact.problem, fields | {"NUTS": exact.posterior}, draws)


@app.command()
def bandit(
    methods: Annotated[
        str, typer.Option(help="Names, oracle, or my_file.py:NAME, with commas.")
    ] = "uniform,mlp,ensemble+",
    dim: Annotated[int, typer.Option(help="d: there are 20 d actions in R^d.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="The horizon.")] = 5000,
    full: Annotated[bool, typer.Option("--full", help="The paper's horizon: 50,000 steps.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many environments.")] = 20,
    select: Annotated[
        str, typer.Option(help="thompson, ucb:SCALE or epsilon-greedy:PROBABILITY.")
    ] = "thompson",
    model: Annotated[str, typer.Option(help="The environments: mlp or logistic.")] = "mlp",
    temperature: Annotated[float, typer.Option(help="Of the environments.")] = 0.1,
    activation: Annotated[str | None, typer.Option(help="Of the environments; relu if not given.")] = None,
    hidden: Annotated[
        str | None, typer.Option(help="Hidden units of the environments; 50,50 if not given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The directory of regrets; a run goes on where it was.")] = Path(
        "bandits"
    ),
    jobs: Jobs = None,
    settings: Settings = None,
    preset: Preset = "tuned",
    baseline: Baseline = "mlp",
    figure: Annotated[Path | None, typer.Option(help="Draw the regret curves into this file.")] = None,
    format: Format = "table",
) -> None:
    """Let methods act: Thompson sampling in a neural bandit, and its regret.

    By name, ensembles have 30 members and minibatches 128 rows, unless --set says otherwise; a method of a
    file is taken as it is.

    Examples:

      pp-testbed bandit --methods uniform,mlp,ensemble,ensemble+,hypermodel --figure regret.png

      pp-testbed bandit --dim 50 --methods mlp,ensemble --full --set ensemble.size=100
    """
    with plain_errors():
        from pp_testbed.inference.base import method_name
        from pp_testbed.report.decisions import regrets
        from pp_testbed.report.leaderboard import FORMATS, check_baseline
        from pp_testbed.studies.bandits import PAPER_STEPS, agent
        from pp_testbed.studies.bandits import bandit as play

        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        _check_figure(figure)
        specs = _specs(methods, settings or [], preset)
        check_baseline(baseline, (method_name(agent(spec)) for spec in specs))
        options: dict[str, Any] = {}
        if activation is not None:
            options["activation"] = activation
        if hidden is not None:
            options["hidden"] = _whole_numbers("--hidden", hidden)
        frame = play(
            specs,
            dim=dim,
            steps=PAPER_STEPS if full else steps,
            seeds=seeds,
            temperature=temperature,
            model=model,
            select=select,
            out=out,
            jobs=jobs or cores(),
            **options,
        )
        if (frame.status == "ok").any():
            _print_with_errors(regrets(frame, baseline), format)
            _draw(figure, "regret", frame)
        errors.print(f"regrets are in {_escaped(out)}{os.sep}")
        _report_failures(frame)


@app.command()
def active(
    methods: Annotated[str, typer.Option(help="Names, or my_file.py:NAME, with commas.")] = "mlp,ensemble+",
    suite: Annotated[
        str, typer.Option(help="Its problems of 1000 data at temperature 0.1 are the pools.")
    ] = "2d",
    priorities: Annotated[
        str, typer.Option(help="uniform, variance, entropy, margin, bald, nll, joint-nll.")
    ] = "uniform,variance,entropy,margin,bald",
    budgets: Annotated[str, typer.Option(help="After how many labels there is a score.")] = "10,20,40,80,160",
    seeds: Seeds = "",
    out: Annotated[Path, typer.Option(help="The directory of scores; a run goes on where it was.")] = Path(
        "active"
    ),
    jobs: Jobs = None,
    settings: Settings = None,
    preset: Preset = "tuned",
    figure: Annotated[Path | None, typer.Option(help="Draw the learning curves into this file.")] = None,
    format: Format = "table",
) -> None:
    """Let methods choose which inputs are labelled, and score them after each budget.

    The priorities nll and joint-nll look at the labels before they are asked for: what there is to gain.

    Examples:

      pp-testbed active --methods mlp,ensemble+,my_method.py:METHOD --figure active.png
    """
    with plain_errors():
        from pp_testbed.report.decisions import learning
        from pp_testbed.report.leaderboard import FORMATS
        from pp_testbed.studies.active import active as learn
        from pp_testbed.studies.active import pools

        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        _check_figure(figure)
        chosen = pools(suite)
        frame = learn(
            _specs(methods, settings or [], preset),
            chosen.filter(seed=_numbers(seeds)) if seeds else chosen,
            priorities=[name for name in priorities.split(",") if name],
            budgets=_whole_numbers("--budgets", budgets),
            out=out,
            jobs=jobs or cores(),
        )
        if (frame.status == "ok").any():
            _print_with_errors(learning(frame), format)
            _draw(figure, "learning", frame)
        errors.print(f"scores are in {_escaped(out)}{os.sep}")
        _report_failures(frame)


@app.command()
def correlate(
    bandits: Annotated[Path, typer.Argument(help="A directory of `pp-testbed bandit`.")] = Path("bandits"),
    results: Annotated[Path, typer.Argument(help="A results directory.")] = Path("results"),
    methods: Annotated[
        str, typer.Option(help="Only these; all but oracle, uniform and prior if not given.")
    ] = "",
    step: Annotated[
        int | None, typer.Option(help="After which regrets count; the last that all runs have if not given.")
    ] = None,
    testbed: Annotated[
        str | None, typer.Option(help="The model of the scores, such as 2d; each bandit's own if not given.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw regrets against scores into this file.")] = None,
    format: Format = "table",
) -> None:
    """Do scores predict decisions? Correlations of log regret with log scores over agents.

    Results must be of the bandits' models and temperature, such as those of suite decisions. Intervals
    are of 95 %, over agents and seeds.

    Examples:

      pp-testbed run --suite decisions --methods mlp,ensemble,ensemble+,hypermodel

      pp-testbed correlate bandits/ results/ --figure correlation.png
    """
    with plain_errors():
        from pp_testbed.report.decisions import correlations
        from pp_testbed.studies.bandits import read_bandits

        _check_figure(figure)
        inputs = read_bandits(bandits, _complain), _results(results), _names(methods), step, testbed
        table = correlations(*inputs)
        _print_table(table, format)
        left = sorted(set(inputs[0].model) - set(table.model.str.partition(",")[0]))
        if left:
            errors.print(f"no scores of their model: {', '.join(left)}; see --testbed")
        _draw(figure, "correlation", *inputs)


@app.command()
def robustness(
    results: Annotated[Path | None, typer.Option(help="A results directory.")] = None,
    bandits: Annotated[Path | None, typer.Option(help="A directory of `pp-testbed bandit`.")] = None,
    methods: Annotated[
        str, typer.Option(help="Only these; all but oracle, uniform and prior if not given.")
    ] = "",
    figure: Annotated[Path | None, typer.Option(help="Draw the correlations into this file.")] = None,
    format: Format = "table",
) -> None:
    """Do generative models agree on agents? Correlations of agents' scores and regrets between models.

    Examples:

      pp-testbed run --suite activations --methods mlp,ensemble,ensemble+,hypermodel --out activations

      pp-testbed robustness --results activations --figure robustness.png
    """
    with plain_errors():
        from pp_testbed.report.decisions import across_models
        from pp_testbed.studies.bandits import read_bandits

        _check_figure(figure)
        if results is None and bandits is None:
            raise UsageError("give --results, --bandits or both")
        inputs = (
            None if results is None else _results(results),
            None if bandits is None else read_bandits(bandits, _complain),
            _names(methods),
        )
        _print_table(across_models(*inputs), format)
        _draw(figure, "robustness", *inputs)


@reference_app.command("build")
def reference_build(
    suite: Annotated[str, typer.Option(help="The problems; see `pp-testbed suites`.")] = "smoke",
    problem: Annotated[str, typer.Option(help="One problem instead, such as 2d/T10-rho0.1-s0.")] = "",
    seeds: Seeds = "",
    max_num_train: Annotated[
        int | None, typer.Option(help="Only problems with at most so many data.")
    ] = None,
    store: StoreOption = None,
    jobs: Jobs = None,
    settings: Settings = None,
) -> None:
    """Build the references that are missing, chain by chain; a stopped build goes on where it was.

    Examples:

      pp-testbed reference build --problem 2d/T10-rho0.1-s0

      pp-testbed reference build --suite 2d --max-num-train 100 --jobs 2
    """
    with plain_errors():
        from pp_testbed.inference.base import method, with_options
        from pp_testbed.problems.synthetic import problem as named_problem
        from pp_testbed.studies import reference_files, references

        selected = [named_problem(problem)] if problem else list(_selected(suite, seeds, None))
        selected = [one for one in selected if max_num_train is None or one.num_train <= max_num_train]
        if not selected:
            raise UsageError(f"no problem has at most {max_num_train} data")
        options = dict(_specs("nuts", settings or [])[0].options)
        nuts = with_options(method("nuts"), options)
        paths = references.build_references(selected, store=store, method=nuts, jobs=jobs or cores())
        directory = store or reference_files.default_store()
        errors.print(f"{len(paths)} references are in {_escaped(directory)}{os.sep}")
        _report_not_converged([reference_files.load(path) for path in paths])


@reference_app.command("list")
def reference_list(store: StoreOption = None, format: Format = "table") -> None:
    """List the references: those shipped with the package, and the store's."""
    with plain_errors():
        from pp_testbed.studies.reference_files import default_store, references

        with warnings.catch_warnings(record=True) as ignored:
            warnings.simplefilter("always")
            table = references(store)
        for warning in ignored:
            errors.print(f"[bold red]warning:[/] {_escaped(warning.message)}")
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
        _print_table(table[columns] if format == "table" else table, format)
        errors.print(f"the store is {_escaped(store or default_store())}{os.sep}")


@reference_app.command("show")
def reference_show(
    problem: Annotated[str, typer.Argument(help="Such as 2d/T10-rho0.1-s0.")], store: StoreOption = None
) -> None:
    """Show a reference: how it was made, its scores and its diagnostics."""
    with plain_errors():
        import json

        from pp_testbed.studies.references import reference

        found = reference(problem, store=store)
        verdict = found.diagnostics.verdict
        typer.echo(f"{found.problem.name}  {verdict}\n{found.path}\n\n{found.scores}\n\n{found.diagnostics}")
        typer.echo(f"\n{found.seconds:.0f} s of chains; {json.dumps(found.versions)}\n{found.settings}")


@reference_app.command("verify")
def reference_verify(
    problem: Annotated[str, typer.Argument(help="Such as 2d/T10-rho0.1-s0; all of the store if none.")] = "",
    store: StoreOption = None,
    format: Format = "table",
) -> None:
    """Derive diagnostics anew from what is stored, and run the beginning of a chain again."""
    with plain_errors():
        from dataclasses import asdict

        import pandas as pd

        from pp_testbed.studies.reference_files import load, stored_files
        from pp_testbed.studies.references import reference, verify

        found = [reference(problem, store=store)] if problem else [load(path) for path in stored_files(store)]
        if not found:
            raise UsageError("there are no references in the store")
        checks = [verify(one) for one in found]
        _print_table(pd.DataFrame([asdict(check) | {"passed": check.passed} for check in checks]), format)
        if not all(check.passed for check in checks):
            raise typer.Exit(1)


@app.command()
def methods(
    preset: Preset = "tuned", format: Annotated[str, typer.Option(help="table or json.")] = "table"
) -> None:
    """List the methods and the hyperparameters that `--set` changes, with their defaults."""
    with plain_errors():
        from dataclasses import fields

        from pp_testbed.inference.base import METHODS, method

        rows = []
        for name, entry in METHODS.items():
            made: Any = method(name, preset=preset)
            options = {field.name: getattr(made, field.name) for field in fields(made)}
            settable = {
                option: list(value) if isinstance(value, tuple) else value
                for option, value in options.items()
                if isinstance(value, bool | int | float | str | tuple) and option != "name"
            }
            rows.append({"method": name, "what it is": entry.summary, "options": settable})
        _list(rows, format, "options")


@app.command()
def suites(
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name every problem.")] = False,
) -> None:
    """List the suites and how many problems each has."""
    with plain_errors():
        from pp_testbed.problems.suites import SUITES, suite

        rows: list[dict[str, Any]] = []
        for name, (summary, _) in SUITES.items():
            problems = [problem.name for problem in suite(name)]
            row = {"suite": name, "problems": len(problems), "what it is": summary}
            rows.append(row | ({"names": problems} if verbose else {}))
        _list(rows, format, "names")


def main() -> None:
    """The entry point of `pp-testbed`."""
    os.environ.setdefault("MPLBACKEND", "agg")  # pictures are files here, whatever the desktop is
    app()


def _check_figure(figure: Path | None, option: str = "--figure") -> None:
    """Say before the work, not after it, that a picture cannot be written."""
    if figure is None:
        return
    if figure.suffix not in (".png", ".pdf", ".svg"):
        raise UsageError(f"{option} {figure}: expected a name that ends in .png, .pdf or .svg")
    if not figure.parent.is_dir():
        raise UsageError(f"{option} {figure}: there is no directory {figure.parent}")


def _selected(suite: str, seeds: str, limit: int | None) -> Any:
    from pp_testbed.problems.suites import suite as named_suite

    selected = named_suite(suite)
    if seeds:
        selected = selected.filter(seed=_numbers(seeds))
        if not len(selected):
            raise UsageError(f"suite {suite} has no problem with seed {seeds}")
    return selected.limit(limit) if limit else selected


def _numbers(text: str) -> set[int]:
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


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """`50,50` as (50, 50)."""
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise UsageError(f"{option} {text}: expected whole numbers, as in 10,20") from None


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _complain(line: str) -> None:
    errors.print(_escaped(line))


def _results(directory: Path) -> pd.DataFrame:
    """The results of a directory, or of a file, of which there must be some."""
    from pp_testbed.engine.store import read_results
    from pp_testbed.report.leaderboard import without_superseded
    from pp_testbed.studies.scoring import RESULTS

    frame = read_results(directory, RESULTS, _complain)
    if frame.empty:
        raise UsageError(f"there are no results in {directory}")
    return without_superseded(frame)


def _calibrations(directory: Path | None) -> Any:
    """What `pp-testbed sbc` left in a directory, if one is given."""
    if directory is None:
        return ()
    from pp_testbed.studies.calibration import calibrations

    return calibrations(directory)


def _near(path: Path) -> Path:
    """A path as seen from here, where it is below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _read(path: Path, source: str) -> pd.DataFrame:
    """What a directory of results, bandits or active learning has."""
    if source == "results":
        return _results(path)
    if source == "bandits":
        from pp_testbed.studies.bandits import read_bandits

        return read_bandits(path, _complain)
    from pp_testbed.studies.active import read_active

    return read_active(path, _complain)


def _specs(methods: str, settings: list[str], preset: str = "tuned") -> list[Any]:
    """Methods of the command line with their settings."""
    from pp_testbed.inference.specs import MethodSpec

    names = [name for name in methods.split(",") if name]
    options: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    for setting in settings:
        left, equals, value = setting.partition("=")
        name, dot, option = left.rpartition(".")
        if not (equals and dot):
            raise UsageError(f"--set {setting}: expected METHOD.OPTION=VALUE, as in mlp.l2=10")
        if name not in options:
            raise unknown("method in --set (it is not among --methods)", name, names)
        options[name].append((option, value))
    return [MethodSpec(name, tuple(options[name]), preset) for name in names]


def _config(inputs: int | None, draws: int | None) -> Any:
    from pp_testbed.evaluation.evaluator import Evaluation

    options: dict[str, Any] = {"num_batches": inputs, "num_draws": draws}
    return Evaluation(**{name: value for name, value in options.items() if value})


def _show(
    frame: pd.DataFrame,
    by: tuple[str, ...],
    baseline: str,
    format: str,
    calibrations: Any = (),
    published: bool = False,
) -> None:
    from pp_testbed.report.leaderboard import leaderboard as make
    from pp_testbed.report.leaderboard import render, words_on_incomplete

    table = make(frame, by, baseline, calibrations=calibrations, published=published)
    _print(render(table, format, baseline))
    if words := words_on_incomplete(table):
        errors.print(_escaped(words))


def _print_table(table: pd.DataFrame, format: str) -> None:
    from pp_testbed.report.leaderboard import render_plain

    _print(render_plain(table, format))


def _print_with_errors(table: pd.DataFrame, format: str) -> None:
    """As `_print_table`; for people, a value and its standard error share a cell."""
    from pp_testbed.report.leaderboard import with_errors

    _print_table(with_errors(table) if format in ("table", "markdown", "latex") else table, format)


def _print(shown: Any) -> None:
    """Print text, or a table of rich."""
    if isinstance(shown, str):
        typer.echo(shown, nl=not shown.endswith("\n"))
    else:
        # A table wider than the terminal wraps its lines; one that hides digits would be worse.
        width = Console(width=1000).measure(shown).maximum
        Console(width=max(Console().width, width), highlight=False).print(shown)


def _draw(path: Path | None, name: str, *arguments: Any) -> None:
    """Draw a picture of `report.plots`, if there is a file to draw it into."""
    if path is not None:
        from pp_testbed.report import plots

        plots.save(getattr(plots, name)(*arguments), path)
        errors.print(f"the picture is {_escaped(path)}")


def _report_not_converged(found: list[Any]) -> None:
    """Say which references failed the gate and why, and end with 1 if any did."""
    failed = [one for one in found if not one.converged]
    for one in failed:
        reasons = "; ".join(one.diagnostics.failures)
        errors.print(f"[bold red]not converged:[/] {_escaped(one.problem.name)}: {_escaped(reasons)}")
    if failed:
        raise typer.Exit(1)


def _report_failures(frame: pd.DataFrame) -> None:
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
        errors.print(f"[bold red]failed:[/] {_escaped(method)} on {_escaped(example)}: {_escaped(error)}")
    raise typer.Exit(1)


def _list(rows: list[dict[str, Any]], format: str, last: str) -> None:
    """Print rows as a table, with the column `last` below each row, or as JSON."""
    import json

    if format == "json":
        typer.echo(json.dumps(rows, indent=1))
        return
    if format != "table":
        raise unknown("format", format, ("table", "json"))
    console = Console(highlight=False)
    for row in rows:
        name, *words = [str(value) for key, value in row.items() if key != last]
        console.print(f"[bold]{_escaped(name)}[/]  {_escaped('  '.join(words))}")
        details = row.get(last) or ()
        if isinstance(details, dict):
            details = [f"{key}={value}" for key, value in details.items()]
        if details:
            console.print(f"    {_escaped(', '.join(details))}", soft_wrap=True)
