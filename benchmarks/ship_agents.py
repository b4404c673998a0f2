"""The agents of the dyadic paper on suites of many dimensions and of data: tuned, run and kept; resumable.

Usage: python benchmarks/ship_agents.py DIRECTORY SUITE [tune|run|cost ...]

`tune` chooses options for each kind of problem into `pp_testbed/data/SUITE.json`: of environments by seeds
that are not reported, for each d and T; of data by a part of the training data, for each set and T, and for
each seed where seeds have test parts of their own.
`run` scores the agents with those, into `kept/SUITE.parquet`. `cost` says how long each agent took.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import pp_testbed as pt
from pp_testbed.engine.store import OK
from pp_testbed.inference.specs import MethodSpec
from pp_testbed.problems.suites import Suite
from pp_testbed.studies.cells import facts_of

HOME = Path(__file__).parent.parent
KEPT = HOME / "kept"
MEMBERS = {"size": "30"}
OF_LABELS = pt.Evaluation(num_draws=300)  # at thousands of rows, rather than batches of ten
OF_IMAGES = pt.Evaluation(num_draws=100)  # of thousands of pixels
FEWER = {"size": "10"}  # while they are tuned, and of images
CHAIN = {"momentum": "0.0", "steady": "1000.0"}  # as the tuned preset: see `ship_tuned`
LONG = CHAIN | {"num_steps": "100000", "burn_in": "20000", "thinning": "200"}
BRIEF = CHAIN | {"num_steps": "10000", "burn_in": "5000", "thinning": "50"}
SHORT = CHAIN | {"num_steps": "20000", "burn_in": "5000", "thinning": "50"}
HYPERMODEL = {"index_dim": "7"}


class Agent(NamedTuple):
    """How an agent is tuned and run.

    Attributes:
        few, many: options that are varied where data are few, and where 1000 steps do not exhaust them.
        held: options that are held while tuning; `ships_held` in the preset, too.
        run: options that are held afterwards.
        tuned_at: which problems stand for all in tuning, which of long chains takes minutes a problem.
    """

    name: str
    few: dict[str, list[Any]]
    many: dict[str, list[Any]]
    held: dict[str, str] = {}  # noqa: RUF012
    run: dict[str, str] = {}  # noqa: RUF012
    ships_held: bool = False
    tuned_at: dict[str, Any] = {}  # noqa: RUF012


DECAYS = [0.1, 0.3, 1.0, 3.0, 10.0]
HIGHDIM = (
    Agent("mlp", {"l2": DECAYS}, {"l2": [0.3, 1.0, 3.0, 10.0], "num_steps": [1000, 10000]}),
    Agent(
        "dropout",
        {"l2": DECAYS, "rate": [0.05, 0.1, 0.3]},
        {"l2": [1.0, 3.0, 10.0], "rate": [0.05, 0.1, 0.3], "num_steps": [1000, 10000]},
    ),
    Agent(
        "ensemble",
        {"l2": DECAYS},
        {"l2": [1.0, 3.0], "num_steps": [10000]},
        held=FEWER,
        run=MEMBERS,
    ),
    Agent(
        "ensemble+",
        {"l2": [0.1, 0.3, 1.0, 3.0], "prior_scale": [0.3, 1.0, 3.0]},
        {"l2": [1.0, 3.0], "prior_scale": [0.3, 1.0, 3.0], "num_steps": [10000]},
        held=FEWER,
        run=MEMBERS,
    ),
    Agent(
        "bbb",
        {"sigma": [0.3, 0.7, 1.0, 2.0, 4.0], "learning_rate": [1e-3, 3e-3]},
        {"sigma": [0.7, 1.0, 2.0], "learning_rate": [1e-3], "num_steps": [1000, 10000]},
    ),
    Agent(
        "hypermodel",
        {"l2": [0.1, 0.3, 1.0, 3.0], "prior_scale": [0.3, 1.0]},
        {"l2": [1.0, 3.0], "prior_scale": [0.3, 1.0], "num_steps": [10000]},
        held=HYPERMODEL,
        ships_held=True,
    ),
    Agent(
        "sgmcmc",
        {"learning_rate": [1e-4, 3e-4], "prior_variance": [0.2, 0.4, 1.0, 3.0]},
        {"learning_rate": [1e-4, 3e-4], "prior_variance": [0.2, 0.4, 1.0, 3.0]},
        held=LONG,
        ships_held=True,
        tuned_at={"temperature": 0.1},
    ),
)
STEPS = [1000, 5000]  # with which many data are tuned


def of_data(
    members: dict[str, str], chain: dict[str, str], steps: list[int], **tuned_at: Any
) -> tuple[Agent, ...]:
    """The agents on data, with ensembles of so many members, such a chain, and steps where data are many."""
    decays: dict[str, list[Any]] = {"l2": [0.1, 1.0, 10.0]}
    scales: dict[str, list[Any]] = {"prior_scale": [0.3, 1.0]}
    masks: dict[str, list[Any]] = {"rate": [0.1, 0.3]}
    variances: dict[str, list[Any]] = {"prior_variance": [0.1, 1.0, 10.0]}
    longer, longest = {"num_steps": steps}, {"num_steps": steps[-1:]}
    rate: dict[str, list[Any]] = {"learning_rate": [1e-3]}
    few = {"size": "3"}
    agents = (
        Agent("mlp", decays, decays | longer),
        Agent("dropout", decays | masks, {"l2": [1.0]} | masks | longer),
        Agent("ensemble", decays, decays | longest, held=few, run=members),
        Agent("ensemble+", decays | scales, {"l2": [1.0]} | scales | longest, held=few, run=members),
        Agent("bbb", {"sigma": [0.1, 0.3, 1.0]} | rate, {"sigma": [0.3]} | rate | longer),
        Agent(
            "hypermodel",
            decays | {"prior_scale": [0.3]},
            {"l2": [1.0], "prior_scale": [0.3]} | longer,
            held=HYPERMODEL,
            ships_held=True,
        ),
        Agent("sgmcmc", variances, variances, held=chain, ships_held=True),
    )
    return tuple(agent._replace(tuned_at=tuned_at) for agent in agents)


class Plan(NamedTuple):
    """What is done with a suite: its agents, for which facts they are tuned, by which score.

    Data are many where there are so many of them for each input dimension, or for each problem. Scores are by
    `config`.
    """

    agents: tuple[Agent, ...]
    by: tuple[str, ...]
    metric: str
    many: int
    is_per_dimension: bool = False
    config: pt.Evaluation = pt.Evaluation()

    def is_large(self, problem: Any) -> bool:
        """Whether the data of a problem are many."""
        return bool(problem.num_train >= self.many * (problem.input_dim if self.is_per_dimension else 1))


BY_SET = ("model", "num_train")
BY_SPLIT = (*BY_SET, "seed")  # where the test part of one seed is of the training rows of another
PLANS = {
    "highdim": Plan(HIGHDIM, ("input_dim", "num_train"), "kl_dyadic", 1000, is_per_dimension=True),
    "tables": Plan(of_data(MEMBERS, SHORT, STEPS), BY_SPLIT, "nll_dyadic", 10_000, config=OF_LABELS),
    "numbers": Plan(of_data(MEMBERS, BRIEF, STEPS), BY_SPLIT, "nll_dyadic", 10_000, config=OF_LABELS),
    "images": Plan(of_data(FEWER, BRIEF, [1000], seed=0), BY_SET, "nll_dyadic", 10_000, config=OF_IMAGES),
}


def preset_of(suite: str) -> Path:
    """Where options for each kind of problem are."""
    return HOME / "pp_testbed" / "data" / f"{suite}.json"


def parts_of(suite: Suite, plan: Plan) -> Iterator[tuple[Suite, Callable[[Agent], dict[str, list[Any]]]]]:
    """Problems of few data and of many, and the grid of each."""
    for is_large, grid in ((False, lambda agent: agent.few), (True, lambda agent: agent.many)):
        problems = tuple(one for one in suite if plan.is_large(one) == is_large)
        if problems:
            yield Suite(suite.name, problems), grid


def is_tuned(agent: Agent, part: Suite, plan: Plan) -> bool:
    """Whether its options for each kind of these problems are in the preset already."""
    path = preset_of(part.name)
    known = json.loads(path.read_text()).get(agent.name, {}).get("where", []) if path.exists() else []
    facts = [group["facts"] for group in known]
    return all({fact: facts_of(problem)[fact] for fact in plan.by} in facts for problem in part)


def tune(suite: str, directory: Path) -> None:
    """Choose the options of each agent for each kind of problem, where the preset has none yet."""
    plan = PLANS[suite]
    for agent in plan.agents:
        spec = MethodSpec(agent.name, tuple(agent.held.items()))
        for part, grid in parts_of(pt.suite(suite).filter(**agent.tuned_at), plan):
            if is_tuned(agent, part, plan):
                continue
            start = time.monotonic()
            found = pt.tune(
                spec,
                suite=part,
                grid=grid(agent),
                by=plan.by,
                metric=plan.metric,
                config=plan.config,
                study=directory / "tuning" / f"{agent.name}.journal",
                jobs=2,
                progress=False,
            )
            found.save(preset_of(suite), with_held=agent.ships_held)
            seconds = time.monotonic() - start
            print(f"{suite}: {agent.name}, {len(part)} problems: {seconds:.0f} s", flush=True)


def run(suite: str, directory: Path) -> None:
    """Score the agents with those options, and put that where pages and tests read it.

    What is kept already is not run again.
    """
    cells, kept = directory / "cells", KEPT / f"{suite}.parquet"
    cells.mkdir(parents=True, exist_ok=True)
    if kept.exists():
        shutil.copy(kept, cells / kept.name)
    plan = PLANS[suite]
    preset = str(preset_of(suite))
    specs = [MethodSpec(agent.name, tuple(agent.run.items()), preset=preset) for agent in plan.agents]
    start = time.monotonic()
    frame = pt.run(pt.suite(suite), specs, cells, config=plan.config, jobs=2, progress=False)
    failed = int((frame.status != OK).sum())
    print(f"{suite}: {failed} of {len(frame)} failed, {time.monotonic() - start:.0f} s", flush=True)
    frame = frame[frame.status == OK].sort_values(["method", "problem"])
    frame.to_parquet(kept, index=False)
    print(f"{suite}: {len(frame)} rows are kept")


def core_hours(frame: pd.DataFrame) -> pd.DataFrame:
    """What each agent cost, compilation left out: fitting and evaluation as columns, in hours."""
    return frame.groupby("method")[["fit_seconds", "evaluate_seconds"]].sum() / 3600


def cost(suite: str, _directory: Path) -> None:
    """Print what each agent cost, and of how many problems."""
    frame = pd.read_parquet(KEPT / f"{suite}.parquet")
    print(core_hours(frame).assign(problems=frame.groupby("method").size()).round(3).to_string())


def main() -> None:
    """Do the steps that are named, or all."""
    directory, suite, *steps = sys.argv[1:]
    for step in steps or ("tune", "run", "cost"):
        {"tune": tune, "run": run, "cost": cost}[step](suite, Path(directory) / suite)


if __name__ == "__main__":
    main()
