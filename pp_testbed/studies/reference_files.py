"""Reference posteriors as files: what is in them, where they are, and the table of all.

A reference is one `.npz` file (no pickle): what every draw says at the probe inputs, the terms of its
scores, thinned draws of the parameters, how the chains started, and a text with settings, versions,
scores and diagnostics. Whether it converged is not in it: that follows from the diagnostics and today's gate.
Some are shipped with the package. How they are built and checked is in `references`.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.tree_util import Partial

from pp_testbed.engine.identity import config_hash, config_text, renewed
from pp_testbed.engine.store import cell_id, file_words, read_arrays, write_whole
from pp_testbed.errors import UsageError
from pp_testbed.evaluation.diagnostics import Diagnostics
from pp_testbed.evaluation.scores import SYMBOLS, Scores, lead_among
from pp_testbed.evaluation.terms import Evaluation
from pp_testbed.inference.arviz import arviz_object, probe_inputs
from pp_testbed.inference.mcmc import NUTS, Chains
from pp_testbed.inference.posterior import divisor
from pp_testbed.models.base import read_outputs
from pp_testbed.problems.base import BaseProblem
from pp_testbed.problems.named import of_name as named_problem

REVISION = 1  # of how chains become a reference
SHIPPED = Path(str(files("pp_testbed") / "data" / "references"))
TABLE = Path(str(files("pp_testbed") / "data" / "references.csv"))
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
            the same settings, as the draws of the first are not kept.
        draws: latent sites of every `thinning`-th draw, [kept, ...].
        seconds: of all chains, on one core.
        versions: of what made it.
        path: where it was read from.
    """

    problem: BaseProblem
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
        joint = lead_among(self.scores.values).joint
        values = [self.scores.values[joint + end] for end in ("", "_stderr")]
        score = f"{SYMBOLS[joint]} = {values[0]:.4f} ± {values[1]:.4f}"
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
            function=Partial(read_outputs, self.problem.model),
            draws=draws,
            log_weights=jnp.full(num, -jnp.log(num)),
            num_groups=divisor("the reference", num),
            stats={name: jnp.asarray(leaf[:, :: self.thinning]) for name, leaf in stats.items()},
            task=self.problem.task,
            num_chains=len(next(iter(self.stats.values()))),
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


def settings_of(method: NUTS, evaluation: Evaluation | None = None) -> str:
    """What a reference is of besides its problem: the sampler and the evaluation, as JSON."""
    return config_text(revision=REVISION, method=method, evaluation=evaluation or Evaluation())


def file_name(problem: BaseProblem, settings: str) -> str:
    """The file of a reference: the problem in words, and what identifies it."""
    digest = cell_id(problem.name, problem.revision, config_hash(settings))
    return f"{file_words(problem.name)}_{digest}.npz"


def find(folder: Path, problem: BaseProblem, settings: str) -> Path | None:
    """The file of a folder that is this reference; 0.2.0 named it otherwise."""
    path = folder / file_name(problem, settings)
    if path.exists():
        return path
    for other in sorted(folder.glob(f"{file_words(problem.name)}_*.npz")):
        try:
            about = read_about(other)
        except UsageError:
            continue
        if (about["settings"], about["revision"]) == (settings, problem.revision):
            return other
    return None


def save(reference: Reference, path: Path) -> None:
    """Write a reference, whole, unless there is one; what is there is never replaced."""
    if path.exists():
        return
    about = {
        "problem": reference.problem.name,
        "revision": reference.problem.revision,
        "facts": reference.problem.facts | {"seed": reference.problem.seed},
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
    write_arrays(path, arrays)


def load(path: Path, problem: BaseProblem | None = None) -> Reference:
    """Read a reference; a UsageError says which file is damaged or foreign.

    Args:
        problem: that it is of, if that is known: a program of a notebook cannot be made again from its name.
    """
    about, arrays = read_about(path), read_arrays(path)
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
            problem=problem or named_problem(about["problem"]),
            settings=about["settings"],
            scores=Scores.of(about["scores"]),
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


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays, whole."""
    try:
        write_whole(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def references(store: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """The table of references: the shipped ones (all of `2d` with T up to 100) and those in the store.

    `origin` says which: "shipped" ones can be compared to, of "shipped, scores only" there is this row.
    `converged` is what today's gate makes of their diagnostics.
    """
    shipped = pd.read_csv(TABLE)
    whole = {path.name.rpartition("_")[0] for path in SHIPPED.iterdir()}
    is_whole = shipped.problem.map(file_words).isin(whole)
    tables = [shipped.assign(origin=is_whole.map({True: "shipped", False: "shipped, scores only"}))]
    rows = []
    for path in stored_files(store):
        try:
            rows.append(_row(read_about(path)))
        except UsageError as error:
            warnings.warn(f"ignored: {error}", stacklevel=2)
    if rows:
        tables.append(pd.DataFrame(rows).assign(origin="store"))
    table = pd.concat(tables, ignore_index=True)
    table = table.drop_duplicates(["problem", "revision", "settings"], keep="last")
    names = [field.name for field in fields(Diagnostics)]
    gate = [Diagnostics(**row).converged for row in table[names].to_dict("records")]
    table.insert(table.columns.get_loc(names[-1]) + 1, "converged", gate)
    order = ["input_dim", "num_train", "temperature", "seed", "problem"]
    return table.sort_values(order, ignore_index=True)


def _row(about: dict[str, Any]) -> dict[str, Any]:
    """Problem, diagnostics, scores and origin as a row of a table."""
    names = ("input_dim", "num_train", "temperature", "seed")
    if "facts" not in about:  # of 0.3.0 and earlier
        problem = named_problem(about["problem"])
        about["facts"] = {name: getattr(problem, name) for name in names}
    return {
        **{name: about["facts"][name] for name in names},
        "problem": about["problem"],
        "revision": about["revision"],
        **about["diagnostics"],
        **about["scores"],
        "seconds": about["seconds"],
        "settings": config_hash(about["settings"]),
        **about["versions"],
    }


def read_about(path: Path) -> dict[str, Any]:
    """The text in a reference's file, without its arrays, in today's words."""
    arrays = read_arrays(path, ("about",))
    try:
        about = json.loads(str(arrays["about"])) if arrays else {}
        if "revision" not in about:
            about["revision"] = int(about["versions"]["pp_testbed"] == "0.2.0")
            about["settings"] = renewed(about["settings"], about["revision"])
        if path.name.startswith(file_words(about["problem"])):
            return about
    except (KeyError, TypeError, ValueError):
        pass
    raise damaged(path)


def damaged(path: Path) -> UsageError:
    """What is said of a file that is not a reference."""
    return UsageError(f"{path} is damaged or not a reference of pp_testbed; move it away and build again")


def stored_files(store: str | os.PathLike[str] | None = None) -> list[Path]:
    """The files of a store's references."""
    return sorted(filter(Path.is_file, Path(store or default_store()).glob("*.npz")))
