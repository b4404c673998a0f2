"""Commands about decisions: bandit, active, correlate, robustness."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pp_testbed.cli import options as given
from pp_testbed.cli.app import command, errors, escaped
from pp_testbed.cli.output import (
    draw,
    print_table,
    print_with_errors,
    report_failures,
)
from pp_testbed.errors import UsageError


@command()
def bandit(
    methods: given.Methods = "uniform,mlp,ensemble+",
    dim: Annotated[int, typer.Option(help="d: there are 20 d actions in R^d.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="The horizon.")] = 5000,
    full: Annotated[bool, typer.Option("--full", help="The paper's horizon: 50,000 steps.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many environments.")] = 20,
    select: Annotated[str, typer.Option(help="thompson, ucb:SCALE or epsilon-greedy:P.")] = "thompson",
    model: Annotated[str, typer.Option(help="The environments: mlp or logistic.")] = "mlp",
    temperature: given.Temperature = None,
    activation: Annotated[str | None, typer.Option(help="Theirs; relu if not given.")] = None,
    hidden: Annotated[str | None, typer.Option(help="Their units; 50,50 if not given.")] = None,
    out: given.Out = Path("bandits"),
    jobs: given.Jobs = None,
    executor: given.ExecutorName = "local",
    scheduler: given.Scheduler = "",
    settings: given.Settings = None,
    preset: given.Preset = "tuned",
    baseline: given.Baseline = "mlp",
    figure: given.Figure = None,
    format: given.Format = "table",
) -> None:
    """Let methods act: Thompson sampling in a neural bandit, and its regret.

    By name, ensembles have 30 members and minibatches 128 rows, unless --set says otherwise; a method of a
    file is taken as it is.

    Examples:

      pp-testbed bandit --methods uniform,mlp,ensemble,ensemble+,hypermodel --figure regret.png

      pp-testbed bandit --dim 50 --methods mlp,ensemble --full --set ensemble.size=100
    """
    from pp_testbed.inference.options import method_name
    from pp_testbed.report.decisions import regrets
    from pp_testbed.report.leaderboard import check_baseline
    from pp_testbed.studies.bandits import PAPER_STEPS, agent
    from pp_testbed.studies.bandits import bandit as play

    specs = given.specs_of(methods, settings, preset)
    check_baseline(baseline, (method_name(agent(spec)) for spec in specs))
    units = None if hidden is None else given.whole_numbers("--hidden", hidden)
    options: dict[str, Any] = {"activation": activation, "hidden": units}
    frame = play(
        specs,
        dim=dim,
        steps=PAPER_STEPS if full else steps,
        seeds=seeds,
        temperature=temperature,
        model=model,
        select=select,
        out=out,
        executor=given.executor_of(executor, scheduler, jobs),
        **{name: value for name, value in options.items() if value is not None},
    )
    if (frame.status == "ok").any():
        print_with_errors(regrets(frame, baseline), format)
        draw(figure, "regret", frame)
    errors.print(f"regrets are in {escaped(out)}{os.sep}")
    report_failures(frame)


@command()
def active(
    methods: given.Methods = "mlp,ensemble+",
    suite: Annotated[
        str, typer.Option(help="Its problems of 1000 data at temperature 0.1 are the pools.")
    ] = "2d",
    priorities: Annotated[
        str, typer.Option(help="uniform, variance, entropy, margin, bald, nll, joint-nll.")
    ] = "uniform,variance,entropy,margin,bald",
    budgets: Annotated[str, typer.Option(help="After how many labels there is a score.")] = "10,20,40,80,160",
    seeds: given.Seeds = "",
    out: given.Out = Path("active"),
    jobs: given.Jobs = None,
    executor: given.ExecutorName = "local",
    scheduler: given.Scheduler = "",
    settings: given.Settings = None,
    preset: given.Preset = "tuned",
    figure: given.Figure = None,
    format: given.Format = "table",
) -> None:
    """Let methods choose which inputs are labelled, and score them after each budget.

    The priorities nll and joint-nll look at the labels before they are asked for: what there is to gain.

    Examples:

      pp-testbed active --methods mlp,ensemble+,my_method.py:METHOD --figure active.png
    """
    from pp_testbed.report.decisions import learning
    from pp_testbed.studies.active import active as learn
    from pp_testbed.studies.active import pools

    chosen = pools(suite)
    frame = learn(
        given.specs_of(methods, settings, preset),
        chosen.filter(seed=given.numbers(seeds)) if seeds else chosen,
        priorities=[name for name in priorities.split(",") if name],
        budgets=given.whole_numbers("--budgets", budgets),
        out=out,
        executor=given.executor_of(executor, scheduler, jobs),
    )
    if (frame.status == "ok").any():
        print_with_errors(learning(frame), format)
        draw(figure, "learning", frame)
    errors.print(f"scores are in {escaped(out)}{os.sep}")
    report_failures(frame)


@command()
def correlate(
    bandits: Annotated[Path, typer.Argument(help="A directory of `pp-testbed bandit`.")] = Path("bandits"),
    results: given.Results = Path("results"),
    methods: given.Agents = "",
    step: Annotated[
        int | None, typer.Option(help="After which regrets count; the last that all runs have if not given.")
    ] = None,
    testbed: Annotated[
        str | None, typer.Option(help="The model of the scores, such as 2d; each bandit's own if not given.")
    ] = None,
    figure: given.Figure = None,
    format: given.Format = "table",
) -> None:
    """Do scores predict decisions? Correlations of log regret with log scores over agents.

    Results must be of the bandits' models and temperature, such as those of suite decisions. Intervals
    are of 95 %, over agents and seeds.

    Examples:

      pp-testbed run --suite decisions --methods mlp,ensemble,ensemble+,hypermodel

      pp-testbed correlate bandits/ results/ --figure correlation.png
    """
    from pp_testbed.report.decisions import correlations, places
    from pp_testbed.studies.bandits import read_bandits

    inputs = (
        read_bandits(bandits, given.complain),
        given.results_of(results),
        given.names(methods),
        step,
        testbed,
    )
    table = correlations(*inputs)
    print_table(table, format)
    if left := sorted(set(places(inputs[0])) - set(table.model)):
        errors.print(f"no scores of their model: {'; '.join(left)}; see --testbed")
    draw(figure, "correlation", *inputs)


@command()
def robustness(
    results: Annotated[Path | None, typer.Option(help="A results directory.")] = None,
    bandits: Annotated[Path | None, typer.Option(help="A directory of `pp-testbed bandit`.")] = None,
    methods: given.Agents = "",
    figure: given.Figure = None,
    format: given.Format = "table",
) -> None:
    """Do generative models agree on agents? Correlations of agents' scores and regrets between models.

    Examples:

      pp-testbed run --suite activations --methods mlp,ensemble,ensemble+,hypermodel --out activations

      pp-testbed robustness --results activations --figure robustness.png
    """
    from pp_testbed.report.decisions import across_models
    from pp_testbed.studies.bandits import read_bandits

    if results is None and bandits is None:
        raise UsageError("give --results, --bandits or both")
    inputs = (
        None if results is None else given.results_of(results),
        None if bandits is None else read_bandits(bandits, given.complain),
        given.names(methods),
    )
    print_table(across_models(*inputs), format)
    draw(figure, "robustness", *inputs)


@command()
def transfer(
    testbed: Annotated[Path, typer.Argument(help="Results of known truths, such as kept/2d.parquet.")],
    data: Annotated[
        list[Path], typer.Argument(help="Results of held-out labels, such as kept/tables.parquet.")
    ],
    baseline: given.Baseline = "mlp",
    figure: given.Figure = None,
    format: given.Format = "table",
) -> None:
    """Does the testbed say which agents are good on data? Correlations of agents' scores between the two.

    Examples:

      pp-testbed transfer kept/2d.parquet kept/tables.parquet kept/images.parquet --figure transfer.png
    """
    import pandas as pd

    from pp_testbed.report.dimensions import transfer as correlations

    both = given.results_of(testbed), pd.concat([given.results_of(one) for one in data], ignore_index=True)
    print_table(correlations(*both, baseline), format)
    draw(figure, "transfer", *both, baseline)
