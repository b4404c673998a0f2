"""Networks: functions with parameters, as agents train them, and as NumPyro models.

A `Network` says which parameters there are, where training starts, what it computes, and which of that
enters its last layer. `MLP` is the first; `ModuleNetwork` makes one of any NumPyro program with parameters,
such as a module of Flax or Equinox. `BayesianNetwork` gives the parameters of any network a prior. Models
that generate truths are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.interpreters.partial_eval import dce_jaxpr
from numpyro import handlers

from pp_testbed.errors import UsageError
from pp_testbed.models.base import CLASSES, Array, Params, check_model, observe, pytree_dataclass
from pp_testbed.models.likelihoods import Likelihood
from pp_testbed.models.mlp import ACTIVATIONS, layer_shapes, mlp, truncated_normals


class Network(Protocol):
    """A function with parameters. It is hashable: what is trained is not in it, but in its parameters."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        ...

    @property
    def last_layer(self) -> tuple[str, ...]:
        """The parameters on which the features do not depend."""
        ...

    def init(self, key: Array) -> Params:
        """Where training starts."""
        ...

    def apply(self, params: Params, x: Array) -> Array:
        """What it computes at x [N, d]: logits [N, K], or the locations of numbers."""
        ...

    def features(self, params: Params, x: Array) -> Array:
        """What enters its last layer at x [N, d]: [N, F]."""
        ...


@dataclass(frozen=True)
class MLP:
    """A perceptron with biases, whose weights start truncated normal and whose biases start at zero.

    Attributes:
        input_dim, num_outputs: sizes of what goes in and comes out.
        hidden: units of each hidden layer; () is linear.
        activation: one of `models.mlp.ACTIVATIONS`.

    Examples:
        >>> network = MLP(2, (5,), 3)
        >>> network.apply(network.init(jax.random.key(0)), jnp.zeros((4, 2))).shape
        (4, 3)
    """

    input_dim: int
    hidden: tuple[int, ...]
    num_outputs: int
    activation: str = "relu"

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers enter each layer."""
        return (self.input_dim, *self.hidden)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, shape in enumerate(layer_shapes(self.input_dim, self.hidden, self.num_outputs)):
            shapes |= {f"w{layer}": shape, f"b{layer}": shape[1:]}
        return shapes

    @property
    def last_layer(self) -> tuple[str, ...]:
        depth = len(self.hidden)
        return f"w{depth}", f"b{depth}"

    def init(self, key: Array) -> Params:
        shapes = layer_shapes(self.input_dim, self.hidden, self.num_outputs)
        params = {}
        for layer, weights in enumerate(truncated_normals(jax.random.split(key, len(shapes)), shapes)):
            params[f"w{layer}"] = weights
            params[f"b{layer}"] = jnp.zeros(weights.shape[1:])
        return params

    def apply(
        self,
        params: Params,
        x: Array,
        before: Callable[[int, Array], Array] = lambda layer, hidden: hidden,
    ) -> Array:
        """Outputs [N, D] at x [N, d]; what enters a layer goes through `before`."""
        return mlp({name: params[name] for name in self.shapes}, x, self.activation, before)

    def features(self, params: Params, x: Array) -> Array:
        depth = len(self.hidden)
        if depth == 0:
            return x
        below = {name: params[name] for name in self.shapes if name not in self.last_layer}
        return ACTIVATIONS[self.activation](mlp(below, x, self.activation))


@dataclass(frozen=True)
class ModuleNetwork:
    """A network that is a NumPyro program with parameters, such as one around a module of Flax or Equinox.

    Attributes:
        program: from x, of `shape` for each row, to outputs [N, D]; its parameters are sites of
            `numpyro.param`, as `numpyro.contrib.module.nnx_module` and `eqx_module` make them.
        input_dim: d.
        to_features: the same up to its last layer, with parameters of the same names: x to [N, F].
        shape: of an input; (d,) if it is empty.

    Examples:
        >>> def program(x):
        ...     return x @ numpyro.param("weights", lambda key: jax.random.normal(key, (2, 3)))
        >>> ModuleNetwork(program, 2).shapes
        {'weights': (2, 3)}
    """

    program: Callable[[Array], Array]
    input_dim: int
    to_features: Callable[[Array], Array] | None = None
    shape: tuple[int, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: leaf.shape for name, leaf in jax.eval_shape(self.init, jax.random.key(0)).items()}

    @property
    def last_layer(self) -> tuple[str, ...]:
        params = jax.eval_shape(self.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((1, self.input_dim), jnp.float32)
        below = used_by(self.features, params, x)
        last = tuple(name for name in params if name not in below)
        if not last:
            raise UsageError(
                "to_features depends on all parameters of the network; expected all but its last layer's"
            )
        return last

    @property
    def _below(self) -> Callable[[Array], Array]:
        if self.to_features is None:
            raise UsageError("the network does not say what enters its last layer: give it to_features")
        return self.to_features

    def _start(self, key: Array) -> dict[str, Any]:
        """The program's parameters, each a pytree, where they start."""
        x = jnp.zeros((1, *(self.shape or (self.input_dim,))))
        with handlers.block():
            trace = handlers.trace(handlers.seed(self.program, key)).get_trace(x)
        if changing := [name for name, site in trace.items() if site["type"] == "mutable"]:
            raise UsageError(
                f"the network has state that changes, {', '.join(changing)}, such as means of BatchNorm; "
                "expected one whose outputs depend on its parameters and an input alone, as with GroupNorm"
            )
        if drawn := [name for name, site in trace.items() if site["type"] == "sample"]:
            raise UsageError(f"the network samples {', '.join(drawn)}; expected parameters, of numpyro.param")
        found = {name: site for name, site in trace.items() if site["type"] == "param"}
        for name, site in found.items():
            if site["kwargs"].get("constraint", dist.constraints.real) is not dist.constraints.real:
                raise UsageError(f"the network's parameter {name} has a constraint; expected real numbers")
        return {name: site["value"] for name, site in found.items()}

    def init(self, key: Array) -> Params:
        return named_leaves(self._start(key))

    def apply(self, params: Params, x: Array) -> Array:
        return self._run(self.program, params, x)

    def features(self, params: Params, x: Array) -> Array:
        return self._run(self._below, params, x)

    def _run(self, program: Callable[[Array], Array], params: Params, x: Array) -> Array:
        like = jax.eval_shape(self._start, jax.random.key(0))
        leaves = [params[name] for name in named_leaves(like)]
        values = jax.tree.unflatten(jax.tree.structure(like), leaves)
        with handlers.block():
            given = handlers.substitute(handlers.seed(program, jax.random.key(0)), data=values)
            return given(x.reshape(x.shape[0], *(self.shape or (self.input_dim,))))


def named_leaves(tree: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a pytree by names, in its order.

    Examples:
        >>> named_leaves({"net": {"bias": 0.0, "weight": 1.0}})
        {'net.bias': 0.0, 'net.weight': 1.0}
    """
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def used_by(function: Callable[..., Array], params: Params, *args: Any) -> set[str]:
    """Which parameters a function depends on: those that are left where dead code is removed."""
    jaxpr = jax.make_jaxpr(function)(params, *args).jaxpr
    is_used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1]
    return {name for name, used in zip(named_leaves(params), is_used, strict=False) if used}


@pytree_dataclass
class BayesianNetwork:
    """A network whose parameters are all N(0, prior_sd²), as a NumPyro model.

    It computes logits directly; the temperature is for its prior to know. Its MAP is a network
    trained with weight decay: -log p = T·(mean cross-entropy) + ‖θ‖² / (2 prior_sd²) + constant.
    Of numbers it computes locations, and has the parameters of the likelihood's noise besides.
    """

    function: Network
    prior_sd: float
    likelihood: Likelihood = CLASSES

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Array:
        return observe(self.network(self.params(), x), y, num_train, self.likelihood)

    def params(self, prefix: str = "") -> Params:
        """Declare the parameters and the noise as sites; all names start with `prefix`."""
        params = {
            name: numpyro.sample(
                prefix + name, dist.Normal(0.0, self.prior_sd).expand(shape).to_event(len(shape))
            )
            for name, shape in self.function.shapes.items()
        }
        for name, (mean, spread) in self.likelihood.noise.items():
            one = dist.Normal(mean, spread)
            params[name] = numpyro.sample(prefix + name, one.to_event(len(one.batch_shape)))
        return {prefix + name: value for name, value in params.items()}

    def network(self, params: Params, x: Array) -> Array:
        """Outputs [N, D] at x [N, d]."""
        return self.likelihood.with_noise(self.values(params, x), params)

    def values(self, params: Params, x: Array) -> Array:
        """What the network computes at x [N, d]: logits [N, K], or locations [N, 1]."""
        return self.function.apply(params, x)

    def features(self, params: Params, x: Array) -> Array:
        """What enters the last layer [N, F] at x [N, d]."""
        return self.function.features(params, x)

    @property
    def last_layer(self) -> tuple[str, ...]:
        """The parameters on which the features do not depend."""
        return self.function.last_layer

    def start(self, key: Array) -> Params:
        """Where training starts: the network's own start, the noise at its prior's mean."""
        noise = {name: jnp.asarray(mean) for name, (mean, _) in self.likelihood.noise.items()}
        return self.function.init(key) | noise


@pytree_dataclass
class NetworkModel:
    """A network as the model of data: its parameters are N(0, prior_sd²), and methods train the same network.

    Attributes:
        network: what is trained.
        input_dim, num_classes: d and K.
        prior_sd: of each parameter; that of URSABench's HMC, if no other is given.
    """

    revision: ClassVar[int] = 1
    family: ClassVar[str] = "network"
    temperature: ClassVar[float] = 1.0
    settings: ClassVar[tuple[str, ...]] = ()
    network: Network
    input_dim: int
    num_classes: int
    prior_sd: float = 0.1

    def __post_init__(self) -> None:
        check_model(self)

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Array:
        return BayesianNetwork(self.network, self.prior_sd)(x, y, num_train)

    @property
    def likelihood(self) -> Likelihood:
        """Classes."""
        return CLASSES

    def inputs(self, key: Array, num: int) -> Array:
        """Draw inputs [num, d] of the scale that pixels have, N(0, I_d)."""
        return jax.random.normal(key, (num, self.input_dim))
