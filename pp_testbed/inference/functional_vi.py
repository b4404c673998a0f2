"""Functional variational inference: the KL divergence is between functions, not weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.elbo import ELBO

from pp_testbed.inference.options import Sweep, at_once, check_positive
from pp_testbed.inference.svi import SVI
from pp_testbed.models.base import (
    Array,
    Params,
    Program,
    Task,
    pytree_dataclass,
    read_outputs,
    sample_latents,
)


def stein_score(samples: Array, at: Array, kept: float = 0.99) -> Array:
    """∇ log p at points [N, D], of a density that is known by samples [M, D] only.

    The spectral Stein gradient estimator: Shi, Sun and Zhu, 2018, "A Spectral Approach to Gradient
    Estimation for Implicit Distributions". Eigenfunctions ψ_j of a Gaussian kernel, of the median's width,
    by Nyström; Σ_j β_j ψ_j with β_j = -E ∇ψ_j over those that hold the fraction `kept` of the spectrum.
    """
    num = samples.shape[0]
    squared = ((samples[:, None] - samples) ** 2).sum(-1)
    width = jnp.median(squared) + 1e-12

    def kernel(x: Array) -> Array:
        return jnp.exp(-0.5 * ((x - samples) ** 2).sum(-1) / width)

    gram = jnp.exp(-0.5 * squared / width)
    values, vectors = jnp.linalg.eigh(gram + 1e-4 * jnp.eye(num))
    above = jnp.cumsum(values[::-1])[::-1] - values  # of the eigenvalues that are larger
    weights = jnp.where(above < kept * values.sum(), 1.0 / values, 0.0)
    # mean_m ∇_x k(x_m, x_i) = -mean_m (x_m - x_i) k / width
    slopes = (gram.sum(0)[:, None] * samples - gram @ samples) / (width * num)  # [M, D]
    beta = -jnp.sqrt(num) * weights[:, None] * (vectors.T @ slopes)
    psi = jnp.sqrt(num) * (jax.vmap(kernel)(at) @ vectors) * weights
    return psi @ beta


@dataclass(frozen=True)
class FunctionalELBO(ELBO):
    """E_q[log p(y | f)] - KL(q(f_X) ‖ p(f_X)) at random points X, as a loss of NumPyro's SVI.

    Half of X are data, half are drawn from the inputs' distribution. The gradient of the KL is
    E[(∇ log q - ∇ log p)(f_X) ∂f_X/∂φ], with both scores estimated from samples of functions; the value
    of the loss is without the KL, whose gradient alone is known.

    Attributes:
        domain: a model whose `inputs` are drawn.
        points: of X.
        num_draws: functions of q, as many of p.
    """

    domain: Any
    points: int
    num_draws: int

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: Params, model: Program, guide: Program, *args: Any, **kwargs: Any
    ) -> Any:
        x, y = args[:2]
        key_rows, key_inputs, key_q, key_p = jax.random.split(rng_key, 4)
        rows = jax.random.randint(key_rows, (self.points // 2,), 0, x.shape[0])
        inputs = self.domain.inputs(key_inputs, self.points - self.points // 2)
        at = jnp.concatenate([x[rows], inputs])
        fitted = handlers.substitute(guide, data=param_map)

        def draw(key: Array) -> tuple[Array, Array]:
            latents = sample_latents(fitted, x, y, key)
            return log_likelihood(model, latents, args), read_outputs(model, latents, at).ravel()

        def draw_prior(key: Array) -> Array:
            return read_outputs(model, sample_latents(model, x, y, key), at).ravel()

        log_likelihoods, functions = jax.vmap(draw)(jax.random.split(key_q, self.num_draws))
        priors = jax.vmap(draw_prior)(jax.random.split(key_p, self.num_draws))
        fixed = jax.lax.stop_gradient(functions)
        slope = stein_score(fixed, fixed) - stein_score(priors, fixed)
        divergence = (slope * (functions - fixed)).sum(axis=1)  # 0, with the KL's gradient
        return {"loss": (divergence - log_likelihoods).mean(), "mutable_state": None}


def log_likelihood(model: Program, latents: Params, args: Any) -> Array:
    """Σ log p of the observed sites, with their weights."""
    given = handlers.seed(handlers.substitute(model, data=latents), jax.random.key(0))
    sites = handlers.trace(given).get_trace(*args).values()
    observed = [site for site in sites if site["type"] == "sample" and site["is_observed"]]
    total = jnp.zeros(())
    for site in observed:
        scale = 1.0 if site["scale"] is None else site["scale"]
        total = total + (scale * site["fn"].log_prob(site["value"])).sum()
    return total


@pytree_dataclass
class FunctionalVI(SVI):
    """Mean-field weights, fitted by the functional ELBO: Sun et al., 2019, "Functional Variational BNNs".

    The scores of functions at K · `points` values are estimated from few functions, so that the gradient
    of the KL is biased. The loss is `FunctionalELBO`, whatever `loss` is.

    Args:
        points: at which functions are compared.
        num_draws: functions per step, of each distribution.
    """

    revision: ClassVar[int] = 1
    guide: Any = partial(AutoNormal, init_scale=0.1)
    points: int = 20
    num_draws: int = 30
    num_steps: int = 1000
    name: str = "functional-vi"
    sweep: ClassVar[Sweep] = ({"learning_rate": (1e-3, 3e-3, 1e-2), "points": (10, 20)},)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "points", "num_draws")

    @property
    def problems_at_once(self) -> int:
        return at_once(self.num_draws)

    def loss_for(self, task: Task) -> FunctionalELBO:
        return FunctionalELBO(task.model, self.points, self.num_draws)
