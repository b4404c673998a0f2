"""Whether chains deserve to be called a posterior: diagnostics through ArviZ, and the gate.

Parameters of a ReLU network are not identified, functions are: diagnostics are of logit differences at fixed
probe inputs, and of the log density. The distance between two posteriors is for `compare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.inference.arviz import arviz, by_chain, probe_inputs, task_of
from pp_testbed.inference.posterior import Finite
from pp_testbed.models.base import CLASSES, Array, likelihood_of
from pp_testbed.models.likelihoods import Likelihood

if TYPE_CHECKING:
    import pandas as pd

MAX_RHAT = 1.01
MIN_ESS = 400.0
MAX_DIVERGENT = 1e-3


def probe_values(posterior: Finite, x: Array, likelihood: Likelihood = CLASSES) -> Array:
    """What every function predicts at x [N, d], of classes logit differences to class 0: [M, N, P]."""
    return _predictors(posterior.without_history(), x, likelihood)


@partial(jax.jit, static_argnums=2)
def _predictors(posterior: Finite, x: Array, likelihood: Likelihood) -> Array:
    return likelihood.predictor(posterior.values(x))


@dataclass(frozen=True)
class Diagnostics:
    """What the worst probe says, and what the sampler reported.

    Attributes:
        rhat: largest R-hat (rank-normalised, split).
        ess_bulk: smallest effective size of the bulk.
        ess_tail: smallest effective size of the tails.
        mcse: largest Monte Carlo standard error of a mean, in standard deviations of the probe.
        rhat_lp, ess_lp: of the log density, which the gate does not look at: over weights that are not
            identified it mixes more slowly than functions do.
        divergent: fraction of divergent transitions, 0 for a sampler that reports none.
        tree_depth: mean.
        bfmi: smallest energy fraction of missing information of a chain.
    """

    num_chains: int
    num_draws: int
    num_probes: int
    rhat: float
    ess_bulk: float
    ess_tail: float
    mcse: float
    rhat_lp: float
    ess_lp: float
    divergent: float
    tree_depth: float
    bfmi: float

    @property
    def failures(self) -> list[str]:
        """Which conditions of the gate are not met, in words; NaN meets none."""
        if np.isnan(self.rhat):
            return [f"R-hat is not defined for {self.num_chains} x {self.num_draws} draws, or these are NaN"]
        conditions = [
            (self.rhat <= MAX_RHAT, f"R-hat is {self.rhat:.3f} > {MAX_RHAT}"),
            (self.ess_bulk >= MIN_ESS, f"bulk ESS is {self.ess_bulk:.0f} < {MIN_ESS:.0f}"),
            (self.ess_tail >= MIN_ESS, f"tail ESS is {self.ess_tail:.0f} < {MIN_ESS:.0f}"),
            (self.divergent <= MAX_DIVERGENT, f"{self.divergent:.2%} of transitions diverge"),
            (self.num_probes >= 100, f"there are only {self.num_probes} probes"),
        ]
        return [words for met, words in conditions if not met]

    @property
    def converged(self) -> bool:
        """Whether a reference may be made of these chains."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """Whether they converged and, if not, why, in words."""
        return "converged" if self.converged else "not converged: " + "; ".join(self.failures)

    def __str__(self) -> str:
        lines = [f"{name:<13} {value:.4g}" for name, value in asdict(self).items()]
        return "\n".join([*lines, self.verdict])

    def asdict(self) -> dict[str, Any]:
        """The diagnostics as a row of a table, the verdict included."""
        return asdict(self) | {"converged": self.converged}


def diagnose(posterior: Any, probes: Array | None = None) -> Diagnostics:
    """Diagnostics of chains in function space.

    Args:
        posterior: chains, those of `pt.finite(f, chains=4)` among them.
        probes: inputs [N, d]; 128 fixed ones of the model if None, where the chains know theirs.

    Examples:
        >>> from pp_testbed.inference.mcmc import EllipticalSlice
        >>> chains = EllipticalSlice(warmup=10, num_draws=10, thinning=1).fit(problem.keys.fit, problem.task)
        >>> diagnose(chains).converged  # ten draws are too few
        False
    """
    num_chains = getattr(posterior, "num_chains", 0)
    if not num_chains:
        raise UsageError(
            f"diagnose needs the chains of nuts, hmc, sgld, ... or of pt.finite(f, chains=4), not "
            f"{type(posterior).__name__}"
        )
    if probes is None:
        probes = probe_inputs(task_of(posterior, None, "diagnose(posterior, probes)").model)
    logits = posterior.logits(jax.random.key(0), probes)
    model = getattr(getattr(posterior, "task", None), "model", None)
    values = by_chain(likelihood_of(model).predictor(logits), num_chains)
    return diagnose_values(values, getattr(posterior, "stats", {}))


def diagnose_values(values: Any, stats: Mapping[str, Any]) -> Diagnostics:
    """Diagnostics from probe values [chains, draws, probes, ...] and statistics [chains, draws]."""
    table = diagnostics_table(what_varies(np.asarray(values)), stats)
    probes = table[table.quantity != "lp"]
    lp = table.set_index("quantity").reindex(["lp"]).iloc[0]  # NaN where no density was reported
    divergent = np.mean(stats["diverging"]) if "diverging" in stats else 0.0
    depth = np.mean(stats["tree_depth"]) if "tree_depth" in stats else np.nan
    energy = np.asarray(stats["energy"]) if "energy" in stats else None
    # Rows with NaN count as the worst, which min and max of pandas would skip.
    return Diagnostics(
        num_chains=int(np.shape(values)[0]),
        num_draws=int(np.shape(values)[1]),
        num_probes=int(np.shape(values)[2]),
        rhat=float(probes["rhat"].to_numpy().max()),
        ess_bulk=float(probes["ess_bulk"].to_numpy().min()),
        ess_tail=float(probes["ess_tail"].to_numpy().min()),
        mcse=float((probes["mcse"] / probes["sd"]).to_numpy().max()),
        rhat_lp=float(lp["rhat"]),
        ess_lp=float(lp["ess_bulk"]),
        divergent=float(divergent),
        tree_depth=float(depth),
        bfmi=float("nan") if energy is None else float(np.min(arviz().bfmi(energy))),
    )


def what_varies(values: np.ndarray) -> np.ndarray:
    """Probe values [..., probes, P] without outputs that are one number everywhere, such as a noise that is
    known.

    All of them, where none varies.
    """
    flat = values.reshape(-1, values.shape[-1])
    varies = (flat != flat[:1]).any(axis=0)
    return values[..., varies] if values.ndim > 3 and varies.any() else values


def diagnostics_table(values: Any, stats: Mapping[str, Any]) -> pd.DataFrame:
    """One row per probe and one for the log density: mean, sd, R-hat, ESS and MCSE."""
    import pandas as pd
    import xarray

    values = np.asarray(values, dtype=np.float64)
    flat = values.reshape(*values.shape[:2], -1)
    has_lp = "lp" in stats
    lp = np.asarray(stats["lp"], dtype=np.float64)[..., None] if has_lp else flat[..., :0]
    together = np.concatenate([flat, lp], axis=-1)
    dataset = xarray.Dataset({"value": (("chain", "draw", "quantity"), together)})
    az = arviz()
    columns = {
        "rhat": az.rhat(dataset),
        "ess_bulk": az.ess(dataset, method="bulk"),
        "ess_tail": az.ess(dataset, method="tail"),
        "mcse": az.mcse(dataset, method="mean"),
    }
    return pd.DataFrame(
        {
            "quantity": [f"probe {i}" for i in range(flat.shape[-1])] + ["lp"] * has_lp,
            "mean": together.mean(axis=(0, 1)),
            "sd": together.std(axis=(0, 1)),
            **{name: result["value"].values for name, result in columns.items()},
        }
    )


def effective_size(values: np.ndarray) -> float:
    """How many independent ones draws [chains, draws, probes, ...] are worth, at the worst probe.

    It is 0 where nothing varies.
    """
    import xarray

    flat = np.array(values, dtype=np.float64).reshape(*values.shape[:2], -1)
    if flat.shape[1] < 4:  # of which ArviZ makes nothing
        return float(flat.shape[0])
    dataset = xarray.Dataset({"value": (("chain", "draw", "probe"), flat)})
    sizes = np.asarray(arviz().ess(dataset, method="bulk")["value"])
    return float(np.nanmin(sizes)) if np.isfinite(sizes).any() else 0.0
