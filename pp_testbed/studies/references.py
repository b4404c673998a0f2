"""Reference posteriors: NUTS on a problem, behind a gate; built chain by chain, found, and checked.

What a reference is, as a file and as a value, is in `reference_files`; what it is compared by is in
`evaluation.compare`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.tree_util import Partial

from pp_testbed.engine.jobs import Executor, one_line
from pp_testbed.engine.local import Local
from pp_testbed.engine.progress import Progress
from pp_testbed.engine.provenance import versions
from pp_testbed.engine.run import run, words_on_failures
from pp_testbed.engine.store import create_directory
from pp_testbed.engine.study import Cell
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.compare import compare
from pp_testbed.evaluation.diagnostics import diagnose_values, probe_values
from pp_testbed.evaluation.evaluator import evaluate, score_inputs, scores_of
from pp_testbed.evaluation.scores import lead_among
from pp_testbed.evaluation.terms import Evaluation, Terms, summarise
from pp_testbed.inference.arviz import probe_inputs
from pp_testbed.inference.mcmc import NUTS
from pp_testbed.inference.options import method_name
from pp_testbed.inference.posterior import Finite
from pp_testbed.inference.specs import resolve
from pp_testbed.models.base import read_outputs
from pp_testbed.problems.base import BaseProblem
from pp_testbed.problems.named import of_name as named_problem
from pp_testbed.problems.suites import Suite
from pp_testbed.problems.suites import suite as named_suite
from pp_testbed.studies.cells import facts_of
from pp_testbed.studies.chains import Joined, Pieces, sampling
from pp_testbed.studies.reference_files import (
    SHIPPED,
    Reference,
    default_store,
    file_name,
    find,
    load,
    read_about,
    save,
    settings_of,
)

KEPT_DRAWS = 500  # parameters of so many draws are kept, of all chains together


def reference(
    problem: BaseProblem | str,
    *,
    store: str | os.PathLike[str] | None = None,
    method: NUTS | None = None,
    build: bool = False,
    jobs: int = 2,
) -> Reference:
    """The reference posterior of a problem: a shipped one, or the store's, or, if asked, a new one.

    Args:
        problem: a problem or its name.
        store: a directory, which is then looked into first;
            `default_store()` if None.
        method: NUTS with other settings than four chains of 500 + 500.
        build: whether to build it (about ten seconds at T = 10) where there is none.
        jobs: processes that build.

    Examples:
        >>> reference("2d/T10-rho0.1-s0").converged
        True
    """
    problem = named_problem(problem) if isinstance(problem, str) else problem
    settings = settings_of(method or NUTS())
    stored = Path(store or default_store())
    for folder in (SHIPPED, stored) if store is None else (stored, SHIPPED):
        if path := find(folder, problem, settings):
            return load(path, problem)
    if not build:
        raise UsageError(
            f"there is no reference of {problem.name} in {stored}, and the package has no draws; "
            f"build it with pt.reference({problem.name!r}, build=True) or "
            f"`pp-testbed reference build --problem {problem.name}`"
        )
    return load(build_references([problem], store=store, method=method, jobs=jobs)[0], problem)


@dataclass(frozen=True)
class Verification:
    """Whether a stored reference is what it says it is.

    Attributes:
        diagnostics_agree: the diagnostics follow from the stored values.
        scores_agree: and the scores from
            the stored terms.
        draws_agree: the kept parameters give the stored values at the probes.
        repeated: how many of the first `of` draws of a chain came out again, the chain chosen by the
            problem's seed. A chain is chaotic: on another machine or version it is the same for some
            draws only.
        same_versions: whether the packages are those that made it.
    """

    problem: str
    diagnostics_agree: bool
    scores_agree: bool
    draws_agree: bool
    repeated: int
    of: int
    same_versions: bool

    @property
    def passed(self) -> bool:
        """Whether nothing contradicts the reference."""
        enough = self.of // 2 if self.same_versions else 1
        return self.diagnostics_agree and self.scores_agree and self.draws_agree and self.repeated >= enough


def verify(reference: Reference, num_draws: int = 20) -> Verification:
    """Derive the diagnostics anew from what is stored, and run the beginning of a chain again."""
    again = asdict(diagnose_values(reference.values, reference.stats))
    stored = asdict(reference.diagnostics)
    # ArviZ 0.23 and 1.x define the tail ESS slightly differently.
    agree = all(
        np.isclose(again[k], stored[k], rtol=0.2 if k == "ess_tail" else 1e-3, equal_nan=True) for k in stored
    )
    inputs = probe_inputs(reference.problem.model)
    flat = reference.values.reshape(-1, *reference.values.shape[2:])
    spread = flat.std(axis=0)
    likelihood = reference.problem.task.likelihood
    kept = np.asarray(probe_values(reference.posterior, inputs, likelihood))
    at_kept = flat[:: reference.thinning][: len(kept)]
    method, problem = reference.method, reference.problem
    target = method.target(problem.draw()[0])
    chain = problem.seed % method.num_chains
    start = {name: jnp.asarray(leaf[chain]) for name, leaf in reference.start.items()}
    position = start.pop("position")
    state = blackjax.nuts.init(position, target.log_density)
    _, key_draws = jax.random.split(method.chain_keys(problem.keys.fit)[chain])
    num_draws = min(num_draws, reference.values.shape[1])
    run = jax.jit(partial(method.continue_chain, num_draws=num_draws))
    positions, _ = run(key_draws, target, (state, start))
    again_drawn = Finite.equal(Partial(read_outputs, target.model), jax.vmap(target.latents)(positions))
    same = (
        np.abs(
            np.asarray(probe_values(again_drawn, inputs, likelihood)) - reference.values[chain, :num_draws]
        )
        < 1e-2 * spread
    )
    same_draws = same.reshape(num_draws, -1).all(axis=1)
    return Verification(
        problem=problem.name,
        diagnostics_agree=bool(agree),
        scores_agree=all(
            np.isclose(reference.terms[name].mean(), getattr(reference.scores, name), rtol=1e-4)
            for name in lead_among(reference.terms)
        ),
        draws_agree=bool((np.abs(kept - at_kept) < 1e-2 * spread).all()),
        repeated=num_draws if same_draws.all() else int(same_draws.argmin()),
        of=num_draws,
        same_versions=reference.versions == versions(),
    )


def fits_beside(exact: Reference, methods: Sequence[Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Methods fitted to the problem of a reference: their scores and distances to it, and the posteriors."""
    keys, task = exact.problem.keys, exact.problem.task
    rows, posteriors = [{"method": "nuts (reference)", **exact.scores.asdict()}], {}
    for item in methods:
        made = resolve(item, facts_of(exact.problem))
        name = item.text if method_name(made) in posteriors else method_name(made)
        try:
            posterior = posteriors[name] = made.fit(keys.fit, task)
            scores = evaluate(posterior, exact.problem, key=keys.evaluate).asdict()
            rows.append({"method": name, **scores, **compare(posterior, exact).asdict()})
        except Exception as error:
            raise UsageError(f"{name}: {one_line(error)}") from error
    return pd.DataFrame(rows), posteriors


def build_references(
    suite: Suite | str | Iterable[BaseProblem],
    *,
    store: str | os.PathLike[str] | None = None,
    method: NUTS | None = None,
    jobs: int = 2,
    executor: Executor | None = None,
    progress: bool = True,
) -> list[Path]:
    """Build the references of problems, chain by chain, in `jobs` processes (0: in this one).

    Interrupted, it goes on with the chains that are missing. Nothing that is there is built again.
    """
    problems = list(named_suite(suite) if isinstance(suite, str) else suite)
    method, directory = method or NUTS(), Path(store or default_store())
    if method.likelihood_power != 1.0 or method.model is not None:
        raise UsageError(
            "a reference is of the task's own model with likelihood_power=1: the exact posterior"
        )
    settings = settings_of(method)
    there = {problem.name: path for problem in problems if (path := find(directory, problem, settings))}
    for path in there.values():
        read_about(path)  # a damaged one is said at once, not after an hour
    missing = [problem for problem in problems if problem.name not in there]
    if there:
        say = Progress(progress).line
        say(f"{len(there)} of {len(problems)} references are in {directory} already")
    if missing:
        _build(missing, method, directory, executor or Local(jobs), progress)
    return [there.get(problem.name) or directory / file_name(problem, settings) for problem in problems]


def _build(
    problems: Sequence[BaseProblem], method: NUTS, directory: Path, executor: Executor, progress: bool
) -> None:
    """Run the chains that are missing, and put together those of a problem as soon as all are there."""
    study, pieces = sampling(method, problems), Pieces(directory / "pieces")
    by_problem: dict[str, list[Cell]] = {}
    for cell in study.cells:
        by_problem.setdefault(cell.head["problem"], []).append(cell)

    def assemble(cell: Cell) -> None:
        mine, problem = by_problem[cell.head["problem"]], cell.message.problem
        if not all(map(pieces.ended_well, mine)):
            return
        chains = [arrays for one in mine if (arrays := pieces.read(one))]
        if len(chains) == len(mine):
            save(_assemble(problem, method, chains), directory / file_name(problem, settings))
            for one in mine:
                pieces.remove(one)

    create_directory(pieces.directory, "references")
    settings = settings_of(method)
    for cell in study.cells:
        pieces.read(cell)  # a damaged one is run again
    for cells in by_problem.values():  # which a build that was stopped at its very end has left
        assemble(cells[0])
    left = {one.name for one in problems if not (directory / file_name(one, settings)).exists()}
    if not left:
        return
    study = replace(study, cells=[cell for cell in study.cells if cell.head["problem"] in left])
    frame = run(study, pieces.directory, executor, progress=progress, kept=assemble)
    if words := words_on_failures(frame):
        raise UsageError(words)


def _assemble(problem: BaseProblem, method: NUTS, chains: list[Any]) -> Reference:
    """The reference that chains make: scored and diagnosed."""
    task, truth = problem.draw()
    joined = Joined.of(chains, method, task)
    posterior = joined.posterior
    config = Evaluation()
    key = problem.keys.evaluate
    terms = score_inputs(posterior.without_history(), truth, key, config=config)
    num_draws = posterior.log_weights.shape[0]
    summary = summarise(terms, config, truth.offers, truth.num_rows)
    scores = scores_of(summary, num_draws, truth, config)
    kept = [*lead_among(terms.whole), *["predicted"] * ("predicted" in terms.whole)]
    probes = probe_values(posterior, probe_inputs(problem.model), task.likelihood)
    values = np.asarray(probes).reshape(method.num_chains, method.num_draws, *probes.shape[1:])
    thinning = math.gcd(method.num_draws, max(1, num_draws // KEPT_DRAWS))  # so that chains stay apart
    return Reference(
        problem=problem,
        settings=settings_of(method),
        scores=scores,
        diagnostics=diagnose_values(values, joined.stats),
        values=values,
        stats=joined.stats,
        start=joined.start,
        terms={name: np.asarray(terms.whole[name]) for name in kept},
        deviations={name: _deviations(terms, name) for name in kept},
        draws={name: np.asarray(leaf[::thinning]) for name, leaf in posterior.draws.items()},
        thinning=thinning,
        seconds=joined.seconds,
        versions=versions(),
    )


def _deviations(terms: Terms, name: str) -> np.ndarray:
    """How far a term is from itself without each group of draws, [G, n, ...], in half precision."""
    without = np.moveaxis(np.asarray(terms.without[name]), 1, 0)
    return (without - np.asarray(terms.whole[name])).astype(np.float16)
