"""Reference posteriors: NUTS on a problem, with the evidence that it converged, kept in a store.

A reference is one `.npz` file (no pickle): what every draw says at the probe inputs, the terms of its
scores, thinned draws of the parameters, how the chains started, and a text with settings, versions,
scores and diagnostics. Some are shipped with the package; others are built, chain by chain. What a
reference is compared by is in `evaluation.compare`.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from pp_testbed.errors import UsageError
from pp_testbed.evaluation.diagnostics import (
    Diagnostics,
    arviz_object,
    diagnose_values,
    probe_inputs,
    probe_values,
)
from pp_testbed.evaluation.evaluator import Evaluation, Scores, Terms, score_inputs, scores_of, summarise
from pp_testbed.experiments import workers
from pp_testbed.experiments.batch import Programs
from pp_testbed.experiments.identity import config_hash, config_text
from pp_testbed.experiments.problems import Problem, Suite
from pp_testbed.experiments.problems import problem as named_problem
from pp_testbed.experiments.problems import suite as named_suite
from pp_testbed.experiments.progress import Progress
from pp_testbed.experiments.provenance import versions
from pp_testbed.experiments.store import create_directory, file_words, write_whole
from pp_testbed.inference.base import Finite, divisor
from pp_testbed.inference.mcmc import NUTS, Chains
from pp_testbed.models.base import read_logits

if TYPE_CHECKING:
    import pandas as pd

KEPT_DRAWS = 500  # parameters of so many draws are kept, of all chains together
SHIPPED = files("pp_testbed") / "data" / "references"
TABLE = files("pp_testbed") / "data" / "references.csv"
_TERMS = ("kl_marginal", "kl_joint", "kl_dyadic", "predicted")
_GROUPS = ("stats", "start", "terms", "deviations", "draws")  # of arrays in a file


@dataclass(frozen=True, repr=False)
class Reference:
    """The exact posterior of a problem, as far as NUTS reached it.

    Its chains are those that the method `nuts` runs on the problem, key for key: NUTS itself is held
    against it with another key, or by simulation-based calibration.

    Attributes:
        problem: whose posterior it is.
        settings: of NUTS and the evaluation, as JSON.
        scores: of all draws, on the problem's own test inputs.
        diagnostics: of all draws.
        values: logit differences at the probe inputs, [chains, draws, probes, K - 1].
        stats: of each transition, [chains, draws].
        start: states and parameters after warm-up.
        terms: of the scores, for pairing: KLs per batch [n], `predicted` [n, width, K].
        deviations: of these terms without each group of draws from the terms themselves, [G, n, ...]: what
            the errors by draws are made of. Those of the references that are shipped are of other chains of
            the same settings, as the draws of the first are not kept: see `benchmarks/migrate_references.py`.
        draws: latent sites of every `thinning`-th draw, [kept, ...].
        seconds: of all chains, on one core.
        versions: of what made it.
        path: where it was read from.
    """

    problem: Problem
    settings: str
    scores: Scores
    diagnostics: Diagnostics
    values: np.ndarray
    stats: dict[str, np.ndarray]
    start: dict[str, np.ndarray]
    terms: dict[str, np.ndarray]
    deviations: dict[str, np.ndarray]
    draws: dict[str, np.ndarray]
    thinning: int
    seconds: float
    versions: dict[str, str]
    path: str = ""

    def __repr__(self) -> str:
        chains, draws = self.values.shape[:2]
        score = f"d¹⁰ = {self.scores.kl_joint:.4f} ± {self.scores.kl_joint_stderr:.4f}"
        verdict = self.diagnostics.verdict
        return f"Reference({self.problem.name}, {chains} chains of {draws} draws, {verdict}, {score})"

    @property
    def converged(self) -> bool:
        """Whether it passed the gate; nothing is compared to one that did not."""
        return self.diagnostics.converged

    @property
    def evaluation(self) -> Evaluation:
        """How it was scored."""
        return Evaluation(**_plain(json.loads(self.settings)["evaluation"], Evaluation))

    @property
    def method(self) -> NUTS:
        """The sampler that made it."""
        return NUTS(**_plain(json.loads(self.settings)["method"], NUTS))

    @property
    def posterior(self) -> Chains:
        """The kept draws as chains, to look at anywhere.

        They are fewer than those that were scored (100 where shipped), so that their scores are higher;
        `kl_joint_bias` of `evaluate` says by how much. They are too few for the gate: `diagnostics` and
        `to_arviz` are of all draws. Energies of draws that are not neighbours mean nothing, and are left out.
        """
        draws = {name: jnp.asarray(leaf) for name, leaf in self.draws.items()}
        stats = {name: leaf for name, leaf in self.stats.items() if name != "energy" or self.thinning == 1}
        num = len(next(iter(draws.values())))
        return Chains(
            function=Partial(read_logits, self.problem.model),
            draws=draws,
            log_weights=jnp.full(num, -jnp.log(num)),
            num_groups=divisor("the reference", num),
            stats={name: jnp.asarray(leaf[:, :: self.thinning]) for name, leaf in stats.items()},
            task=self.problem.task,
        )

    def to_arviz(self) -> Any:
        """All draws as an object of ArviZ: values at the probe inputs, and what the sampler reported."""
        return arviz_object(
            {
                "posterior": {"probe": np.array(self.values, dtype=np.float64)},
                "sample_stats": {name: np.array(leaf) for name, leaf in self.stats.items()},
                "observed_data": {"y": np.asarray(self.problem.task.y)},
                "constant_data": {
                    "x": np.asarray(self.problem.task.x),
                    "x_probe": np.asarray(probe_inputs(self.problem.model)),
                },
            }
        )


def _plain(described: dict[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a dataclass in its JSON description."""
    return {f.name: described[f.name] for f in fields(kind) if f.name in described}


def default_store() -> Path:
    """Where a user's references are, unless another place is given."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "pp_testbed" / "references"


def file_name(problem: Problem, settings: str) -> str:
    """The file of a reference: the problem in words, and a hash of the settings."""
    return f"{file_words(problem.name)}_{config_hash(settings)}.npz"


def save(reference: Reference, path: Path) -> None:
    """Write a reference, whole, unless there is one; what is there is never replaced."""
    if path.exists():
        return
    about = {
        "problem": reference.problem.name,
        "settings": reference.settings,
        "scores": reference.scores.asdict(),
        "diagnostics": asdict(reference.diagnostics),
        "thinning": reference.thinning,
        "seconds": reference.seconds,
        "versions": reference.versions,
    }
    arrays = {"about": np.array(json.dumps(about)), "values": reference.values}
    for group in _GROUPS:
        arrays |= {f"{group}/{name}": leaf for name, leaf in getattr(reference, group).items()}
    _write_arrays(path, arrays)


def load(path: Path) -> Reference:
    """Read a reference; a UsageError says which file is damaged or foreign."""
    about, arrays = _about(path), _read_arrays(path)
    if arrays is None:
        raise damaged(path)
    try:
        groups: dict[str, Any] = {group: {} for group in _GROUPS}
        for name, array in arrays.items():
            group, slash, rest = name.partition("/")
            if slash:
                groups[group][rest] = array
        if not groups["deviations"]:
            by = about["versions"]["pp_testbed"]
            raise UsageError(
                f"{path} is of pp_testbed {by}, without errors by draws; move it away and build again"
            )
        return Reference(
            problem=named_problem(about["problem"]),
            settings=about["settings"],
            scores=Scores(**about["scores"]),
            diagnostics=Diagnostics(**about["diagnostics"]),
            values=arrays["values"],
            thinning=about["thinning"],
            seconds=about["seconds"],
            versions=about["versions"],
            path=str(path),
            **groups,
        )
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a reference of this version of pp_testbed: {error!r}") from None


def _write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    try:
        write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _read_arrays(path: Path, names: Sequence[str] = ()) -> dict[str, np.ndarray] | None:
    """Arrays of a file (all if no names), checked against their checksums; None where it is damaged."""
    if path.exists() and not path.is_file():  # a pipe, say, which would be waited for
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names or file.files}
    except PermissionError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except Exception:  # whatever zipfile, zlib and numpy make of a damaged byte: there are many
        return None


def references(store: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """The table of references: the shipped ones (all of `2d` with T up to 100) and those in the store.

    `origin` says which: "shipped" ones can be compared to, of "shipped, scores only" there is this row.
    """
    import pandas as pd

    shipped = pd.read_csv(str(TABLE))
    whole = {path.name for path in Path(str(SHIPPED)).iterdir()}
    names = [
        f"{file_words(problem)}_{settings}.npz"
        for problem, settings in zip(shipped.problem, shipped.settings, strict=True)
    ]
    origin = ["shipped" if name in whole else "shipped, scores only" for name in names]
    tables = [shipped.assign(origin=origin)]
    rows = []
    for path in stored_files(store):
        try:
            rows.append(_row(_about(path)))
        except UsageError as error:
            warnings.warn(f"ignored: {error}", stacklevel=2)
    if rows:
        tables.append(pd.DataFrame(rows).assign(origin="store"))
    table = pd.concat(tables, ignore_index=True)
    table = table.drop_duplicates(["problem", "settings"], keep="last")
    order = ["input_dim", "num_train", "temperature", "seed", "problem"]
    return table.sort_values(order, ignore_index=True)


def _row(about: dict[str, Any]) -> dict[str, Any]:
    """Problem, diagnostics, scores and origin as a row of a table."""
    problem = named_problem(about["problem"])
    return {
        **{name: getattr(problem, name) for name in ("input_dim", "num_train", "temperature", "seed")},
        "problem": problem.name,
        **Diagnostics(**about["diagnostics"]).asdict(),
        **about["scores"],
        "seconds": about["seconds"],
        "settings": config_hash(about["settings"]),
        **about["versions"],
    }


def _about(path: Path) -> dict[str, Any]:
    """The text in a reference's file, without its arrays."""
    arrays = _read_arrays(path, ("about",))
    try:
        about = json.loads(str(arrays["about"])) if arrays else {}
        if path.name == file_name(named_problem(about["problem"]), about["settings"]):
            return about
    except (KeyError, ValueError):
        pass
    raise damaged(path)


def damaged(path: Path) -> UsageError:
    """What is said of a file that is not a reference."""
    return UsageError(f"{path} is damaged or not a reference of pp_testbed; move it away and build again")


def stored_files(store: str | os.PathLike[str] | None = None) -> list[Path]:
    """The files of a store's references."""
    return sorted(filter(Path.is_file, Path(store or default_store()).glob("*.npz")))


def reference(
    problem: Problem | str,
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
    settings = config_text(method or NUTS(), Evaluation())
    name = file_name(problem, settings)
    shipped, stored = Path(str(SHIPPED / name)), Path(store or default_store()) / name
    for path in (shipped, stored) if store is None else (stored, shipped):
        if path.exists():
            return load(path)
    if not build:
        raise UsageError(
            f"there is no reference of {problem.name} in {stored.parent}, and the package has no draws; "
            f"build it with pt.reference({problem.name!r}, build=True) or "
            f"`pp-testbed reference build --problem {problem.name}`"
        )
    build_references([problem], store=store, method=method, jobs=jobs)
    return load(stored)


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
    kept = np.asarray(probe_values(reference.posterior, inputs))
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
    again_drawn = Finite.equal(Partial(read_logits, target.model), jax.vmap(target.latents)(positions))
    same = (
        np.abs(np.asarray(probe_values(again_drawn, inputs)) - reference.values[chain, :num_draws])
        < 1e-2 * spread
    )
    same_draws = same.reshape(num_draws, -1).all(axis=1)
    return Verification(
        problem=problem.name,
        diagnostics_agree=bool(agree),
        scores_agree=all(
            np.isclose(reference.terms[name].mean(), getattr(reference.scores, name), rtol=1e-4)
            for name in ("kl_marginal", "kl_joint", "kl_dyadic")
        ),
        draws_agree=bool((np.abs(kept - at_kept) < 1e-2 * spread).all()),
        repeated=num_draws if same_draws.all() else int(same_draws.argmin()),
        of=num_draws,
        same_versions=reference.versions == versions(),
    )


def build_references(
    suite: Suite | str | Iterable[Problem],
    *,
    store: str | os.PathLike[str] | None = None,
    method: NUTS | None = None,
    jobs: int = 2,
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
    settings = config_text(method, Evaluation())
    create_directory(directory / "pieces", "references")
    bar = Progress(progress)
    paths = [directory / file_name(problem, settings) for problem in problems]
    for path in filter(Path.exists, paths):
        _about(path)  # a damaged one is said at once, not after an hour
        for piece in (directory / "pieces").glob(f"{path.stem}_*"):
            piece.unlink(missing_ok=True)  # left by a build that was killed at its very end
    missing = [problem for problem, path in zip(problems, paths, strict=True) if not path.exists()]
    if len(missing) < len(problems):
        bar.line(f"{len(problems) - len(missing)} of {len(problems)} references are in {directory} already")
    queue = list(_jobs(missing, method))
    failures: list[str] = []

    def done(piece: tuple[Problem, int], seconds: float) -> None:
        bar.advance(piece[0].name, _guess(piece[0], method), 1, seconds)

    def died(piece: tuple[Problem, int], why: str) -> None:
        failures.append(f"{piece[0].name}: {why}")

    costs = [(problem.name, method.num_chains * _guess(problem, method)) for problem in missing]
    with bar.over(costs, len(queue), "chains"):
        workers.run(queue, partial(_builder, method, directory), jobs, done, died)
    if failures:
        raise UsageError("; ".join(failures))
    return paths


def _jobs(problems: Sequence[Problem], method: NUTS) -> Iterator[workers.Job]:
    for problem in problems:
        for chain in range(method.num_chains):
            yield workers.Job(problem.padded_size, (problem, chain), (problem, chain))


def _guess(problem: Problem, method: NUTS) -> float:
    """Seconds of a chain, roughly, for the progress bar."""
    steps = method.warmup + method.num_draws * method.thinning
    return steps * (0.8 + problem.num_train / 100) * 1.5e-3 * (0.1 / problem.temperature) ** 0.7


def _builder(method: NUTS, directory: Path) -> Callable[[tuple[Problem, int]], None]:
    """What a worker does: one chain, unless it is there; and, after the last, the reference."""
    programs = Programs()

    def build(message: tuple[Problem, int]) -> None:
        problem, chain = message
        settings = config_text(method, Evaluation())
        path = directory / file_name(problem, settings)
        made_by = config_hash(json.dumps(versions(), sort_keys=True))  # no chains of mixed versions
        pieces = [
            directory / "pieces" / f"{path.stem}_{made_by}_chain{i}.npz" for i in range(method.num_chains)
        ]
        if not path.exists() and _read_arrays(pieces[chain]) is None:
            _write_arrays(pieces[chain], _run_chain(problem, method, chain, programs))
        if not path.exists() and all(piece.exists() for piece in pieces):
            chains = [_read_arrays(piece) for piece in pieces]
            if all(chains):
                save(_assemble(problem, method, settings, chains), path)
        if path.exists():
            for piece in pieces:
                piece.unlink(missing_ok=True)

    return build


@jax.jit
def _chain(method: NUTS, key: Any, task: Any) -> Any:
    positions, stats, (state, tuned) = method.chain(key, method.target(task))
    return positions, stats, {"position": state.position, **tuned}


def _run_chain(problem: Problem, method: NUTS, chain: int, programs: Programs) -> dict[str, np.ndarray]:
    """One chain as arrays."""
    key = method.chain_keys(problem.keys.fit)[chain]
    arguments = jax.tree.map(jnp.asarray, (method, key, problem.draw()[0]))
    (positions, stats, started), seconds = programs.timed(_chain, *arguments)
    arrays = {"positions": positions, "seconds": seconds}
    arrays |= {f"stats/{name}": leaf for name, leaf in stats.items()}
    arrays |= {f"start/{name}": leaf for name, leaf in started.items()}
    return {name: np.asarray(leaf) for name, leaf in arrays.items()}


@jax.jit
def _posterior(method: NUTS, task: Any, positions: Any, stats: Any) -> Chains:
    return method.posterior(method.target(task), positions, stats, None)


def _assemble(problem: Problem, method: NUTS, settings: str, chains: list[Any]) -> Reference:
    """The reference that chains make: scored and diagnosed."""
    task, environment = problem.draw()
    stacked = {name: np.stack([chain[name] for chain in chains]) for name in chains[0]}
    stats, start = _group(stacked, "stats"), _group(stacked, "start")
    posterior = _posterior(method, task, stacked["positions"], stats)
    config = Evaluation()
    key = problem.keys.evaluate
    terms = score_inputs(posterior.without_history(), environment, key, config=config)
    num_draws = posterior.log_weights.shape[0]
    scores = scores_of(summarise(terms, config), num_draws, environment, config)
    probes = probe_values(posterior, probe_inputs(problem.model))
    values = np.asarray(probes).reshape(method.num_chains, method.num_draws, *probes.shape[1:])
    thinning = math.gcd(method.num_draws, max(1, num_draws // KEPT_DRAWS))  # so that chains stay apart
    return Reference(
        problem=problem,
        settings=settings,
        scores=scores,
        diagnostics=diagnose_values(values, stats),
        values=values,
        stats=stats,
        start=start,
        terms={name: np.asarray(terms.whole[name]) for name in _TERMS},
        deviations={name: _deviations(terms, name) for name in _TERMS},
        draws={name: np.asarray(leaf[::thinning]) for name, leaf in posterior.draws.items()},
        thinning=thinning,
        seconds=float(stacked["seconds"].sum()),
        versions=versions(),
    )


def _deviations(terms: Terms, name: str) -> np.ndarray:
    """How far a term is from itself without each group of draws, [G, n, ...], in half precision."""
    without = np.moveaxis(np.asarray(terms.without[name]), 1, 0)
    return (without - np.asarray(terms.whole[name])).astype(np.float16)


def _group(arrays: dict[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    prefix = group + "/"
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
