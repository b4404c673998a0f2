"""Multi-layer perceptrons: what they compute, and the one that generates the truth.

`GenerativeMLP` is the prior of the 2-D testbed (Osband et al., 2022, "The Neural Testbed"). The networks of
that paper's agents are in `networks`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from pp_testbed.errors import UsageError, unknown
from pp_testbed.models.base import CLASSES, Array, Params, check_model, observe, pytree_dataclass
from pp_testbed.models.likelihoods import Likelihood

INITS = ("truncated", "normal")
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "swish": jax.nn.swish,
    "sigmoid": jax.nn.sigmoid,
    "selu": jax.nn.selu,
    "leaky_relu": jax.nn.leaky_relu,
    "gelu": jax.nn.gelu,
}


def mlp(
    params: Params,
    x: Array,
    activation: str = "relu",
    before: Callable[[int, Array], Array] = lambda layer, hidden: hidden,
) -> Array:
    """A perceptron with weights `w0, w1, ...` and biases `b0, ...`: x [N, d] -> [N, K].

    A layer without a bias in `params` has none. What enters a layer goes through `before`.
    """
    depth = sum(name.startswith("w") for name in params)
    hidden = x
    for layer in range(depth):
        hidden = before(layer, hidden) @ params[f"w{layer}"]
        if f"b{layer}" in params:
            hidden = hidden + params[f"b{layer}"]
        if layer < depth - 1:
            hidden = ACTIVATIONS[activation](hidden)
    return hidden


def layer_shapes(input_dim: int, hidden: tuple[int, ...], num_classes: int) -> list[tuple[int, int]]:
    """(fan_in, fan_out) of each layer."""
    return list(pairwise((input_dim, *hidden, num_classes)))


def truncate(z: Array, bound: float = 2.0) -> Array:
    """Push a standard normal through the quantile function of one that is cut at ±bound.

    Q(z) = √2 erfinv(erf(bound / √2) erf(z / √2)). The result is not rescaled: its standard deviation
    is 0.88 for bound 2.
    """
    root = math.sqrt(2.0)
    return root * jax.lax.erf_inv(math.erf(bound / root) * jax.lax.erf(z / root))


def truncated_normals(keys: Array, shapes: list[tuple[int, int]]) -> list[Array]:
    """The usual start of weight matrices: sd 1/sqrt(fan_in), cut at ±2 sd.

    They are drawn by a loop over keys, each as many as the largest has, of which the others take the first,
    which are what they would be alone: code that draws takes long to compile, and is compiled once.
    """
    sizes = [math.prod(shape) for shape in shapes]
    flat = jax.lax.map(lambda key: jax.random.truncated_normal(key, -2.0, 2.0, (max(sizes),)), keys)
    rows = zip(flat, sizes, shapes, strict=True)
    return [row[:size].reshape(shape) / jnp.sqrt(shape[0]) for row, size, shape in rows]


def check_network(hidden: Any, activation: str) -> None:
    """Raise a UsageError unless these are hidden layers and an activation."""
    if not isinstance(hidden, tuple) or not all(isinstance(one, Integral) and int(one) > 0 for one in hidden):
        raise UsageError(f"hidden is {hidden!r}; expected numbers of units, as in (50, 50)")
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)


def hidden_of(word: str) -> tuple[int, ...]:
    """Hidden layers from their word in a name: `h20x20` as (20, 20), `h0` as none."""
    return tuple(int(units) for units in word[1:].split("x") if int(units))


def word_of(hidden: tuple[int, ...]) -> str:
    """Hidden layers as a word of a name."""
    return "h" + ("x".join(map(str, hidden)) or "0")


def generative_params(input_dim: int, hidden: tuple[int, ...], num_outputs: int, init: str) -> Params:
    """Declare the sites of a network of the testbed, and make its weights of them."""
    shapes = layer_shapes(input_dim, hidden, num_outputs)
    spread = truncate if init == "truncated" else lambda z: z
    params = {}
    for layer, (fan_in, fan_out) in enumerate(shapes):
        base = _normal(f"w{layer}_base", (fan_in, fan_out))
        params[f"w{layer}"] = spread(base) / jnp.sqrt(fan_in)
    params["b0"] = _normal("b0_base", (shapes[0][1],)) / jnp.sqrt(input_dim)
    return params


@pytree_dataclass
class GenerativeMLP:
    """The generative model of the testbed: softmax(network(x) / temperature), x ~ N(0, I_d).

    Weights are truncated normal with sd 1/sqrt(fan_in), cut at ±2 sd and not rescaled; first-layer
    biases are N(0, 1/d); there are no other biases. Sites are non-centred (`w0_base ~ N(0, I)`), so
    that a sampler or a guide sees an isotropic prior.

    Attributes:
        input_dim: d.
        num_classes: K.
        hidden: units of each hidden layer.
        activation: one of `ACTIVATIONS`.
        init: "truncated", or "normal" for weights that are not cut.
        temperature: rho; small means nearly deterministic labels.
    """

    revision: ClassVar[int] = 1
    likelihood: ClassVar[Likelihood] = CLASSES
    input_dim: int = 2
    num_classes: int = 2
    hidden: tuple[int, ...] = (50, 50)
    activation: str = "relu"
    init: str = "truncated"
    temperature: float = 0.1

    def __post_init__(self) -> None:
        check_model(self)
        check_network(self.hidden, self.activation)
        if self.init not in INITS:
            raise unknown("init", self.init, INITS)

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Array:
        params = generative_params(self.input_dim, self.hidden, self.num_classes, self.init)
        return observe(mlp(params, x, self.activation) / self.temperature, y, num_train)

    @property
    def settings(self) -> tuple[str, ...]:
        """What a name says of it besides its family."""
        return (f"rho{float(self.temperature)!r}",)

    @property
    def words(self) -> list[str]:
        """What a name says of it besides its dimension: what is not usual."""
        usual = {
            f"K{self.num_classes}": "K2",
            word_of(self.hidden): "h50x50",
            self.activation: "relu",
            self.init: "truncated",
        }
        return [word for word, common in usual.items() if word != common]

    @classmethod
    def options_of(cls, words: list[str]) -> dict[str, Any]:
        """The options that such words say."""
        options: dict[str, Any] = {}
        for word in words:
            if re.fullmatch(r"K\d+", word):
                options["num_classes"] = int(word[1:])
            elif re.fullmatch(r"h\d+(x\d+)*", word):
                options["hidden"] = hidden_of(word)
            else:
                options["init" if word in INITS else "activation"] = word
        return options

    def inputs(self, key: Array, num: int) -> Array:
        """Draw inputs [num, d] from their distribution, N(0, I_d)."""
        return jax.random.normal(key, (num, self.input_dim))


def _normal(name: str, shape: tuple[int, ...], scale: Any = 1.0) -> Array:
    return numpyro.sample(name, dist.Normal(0.0, scale).expand(shape).to_event(len(shape)))
