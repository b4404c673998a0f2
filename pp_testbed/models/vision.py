"""Convolutional networks for images: residual networks, wide ones, and those of published benchmarks by name.

Each is a `models.networks.Network`, written with `jax.lax` alone: what a network computes is one program that
asks for its parameters by name, as `Layers` does, which says their shapes, starts them and applies them.
Normalisation is by groups of channels and depends on one image alone: a likelihood that depended on who else
is in a batch would be none. Inputs are rows [N, d], made images [N, height, width, channels] here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from pp_testbed.errors import UsageError, unknown
from pp_testbed.models.base import Array, Params
from pp_testbed.models.networks import MLP, Network

Reader = Callable[[str, tuple[int, ...]], Array]
MOST_GROUPS, LEAST_CHANNELS = 32, 4  # of normalisation: groups, and channels of each
EPSILON = 1e-5


@dataclass(frozen=True)
class Layers:
    """The layers of a network, whose parameters are asked for by name.

    Attributes:
        read: `(name, shape) -> parameter`. A kernel is [height, width, in, out]; a matrix [in, out].
    """

    read: Reader

    def conv(
        self, name: str, x: Array, channels: int, size: int = 3, stride: int = 1, *, bias: bool = False
    ) -> Array:
        """A convolution of x [N, h, w, c] with a kernel of `size`, padded so that only strides shrink it."""
        kernel = self.read(f"{name}.kernel", (size, size, x.shape[-1], channels))
        around = [(size // 2, size // 2)] * 2
        y = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return y + self.read(f"{name}.bias", (channels,)) if bias else y

    def norm(self, name: str, x: Array) -> Array:
        """Group normalisation of x [N, h, w, c]: Wu and He, 2018. Each channel has a scale and a shift."""
        channels = x.shape[-1]
        groups = math.gcd(MOST_GROUPS, max(1, channels // LEAST_CHANNELS))
        parts = x.reshape(*x.shape[:-1], groups, channels // groups)
        over = (1, 2, 4)
        centred = parts - parts.mean(axis=over, keepdims=True)
        variance = (centred**2).mean(axis=over, keepdims=True)
        normal = (centred * jax.lax.rsqrt(variance + EPSILON)).reshape(x.shape)
        return normal * self.read(f"{name}.scale", (channels,)) + self.read(f"{name}.shift", (channels,))

    def linear(self, name: str, x: Array, outputs: int) -> Array:
        """A linear map of x [N, F], with a bias."""
        kernel = self.read(f"{name}.kernel", (x.shape[-1], outputs))
        return x @ kernel + self.read(f"{name}.bias", (outputs,))


@dataclass(frozen=True)
class ConvNet:
    """What convolutional networks share: a body up to the mean over places, and a linear layer.

    Attributes:
        shape: of an image: height, width and channels.
        num_outputs: D.
        width: channels of the first stage.
        blocks: in each stage; from the second on, a stage halves height and width.
    """

    shape: tuple[int, int, int]
    num_outputs: int
    width: int
    blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        least = 2 ** (len(self.blocks) - 1)
        if len(self.shape) != 3 or min(self.shape[:2]) < least:
            raise UsageError(
                f"images have shape {self.shape}; expected height, width and channels, at least "
                f"{least} x {least} pixels for {len(self.blocks)} stages"
            )

    def body(self, layers: Layers, x: Array) -> Array:
        """What enters the last layer [N, h, w, c] of images."""
        raise NotImplementedError

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}

        def record(name: str, shape: tuple[int, ...]) -> Array:
            found[name] = shape
            return jnp.zeros(shape)

        jax.eval_shape(lambda x: self._run(Layers(record), x), jax.ShapeDtypeStruct((1, *self.shape), float))
        return found

    @property
    def last_layer(self) -> tuple[str, ...]:
        return "last.kernel", "last.bias"

    def init(self, key: Array) -> Params:
        """He et al., 2015: kernels N(0, 2 / fan-in), the last one's N(0, 1 / fan-in); biases 0, scales 1."""
        params, shapes = {}, self.shapes
        for (name, shape), one in zip(shapes.items(), jax.random.split(key, len(shapes)), strict=True):
            gain = 1.0 if name in self.last_layer else 2.0
            if name.endswith(".kernel"):
                spread = math.sqrt(gain / math.prod(shape[:-1]))
                params[name] = spread * jax.random.normal(one, shape)
            else:
                params[name] = jnp.full(shape, float(name.endswith(".scale")))
        return params

    def apply(self, params: Params, x: Array) -> Array:
        """Outputs [N, D] at rows x [N, d]."""
        return self._run(Layers(lambda name, shape: params[name]), self._images(x))

    def features(self, params: Params, x: Array) -> Array:
        """What enters the last layer [N, F] at rows x [N, d]."""
        return self._features(Layers(lambda name, shape: params[name]), self._images(x))

    def _images(self, x: Array) -> Array:
        if x.shape[1] != math.prod(self.shape):
            raise UsageError(
                f"inputs have {x.shape[1]} numbers; images of shape {self.shape} have {math.prod(self.shape)}"
            )
        return x.reshape(-1, *self.shape)

    def _features(self, layers: Layers, images: Array) -> Array:
        return self.body(layers, images).mean(axis=(1, 2))

    def _run(self, layers: Layers, images: Array) -> Array:
        return layers.linear("last", self._features(layers, images), self.num_outputs)


@dataclass(frozen=True)
class ResNet(ConvNet):
    """A residual network: He et al., 2016, "Deep Residual Learning for Image Recognition".

    The first convolution has stride 1, as is usual for images of 32 x 32 pixels, and there is no pooling
    after it. A block is two convolutions, or where `bottleneck` three, 1 x 1, 3 x 3 and 1 x 1, of which the
    last has four times the channels; where its shape changes, what goes around it is a 1 x 1 convolution and
    a normalisation.

    Examples:
        >>> network = ResNet((8, 8, 3), 10, width=8, blocks=(1, 1))
        >>> network.apply(network.init(jax.random.key(0)), jnp.zeros((4, 192))).shape
        (4, 10)
    """

    bottleneck: bool = False

    def body(self, layers: Layers, x: Array) -> Array:
        x = jax.nn.relu(layers.norm("first.norm", layers.conv("first", x, self.width)))
        for stage, blocks in enumerate(self.blocks):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = self._block(layers, f"stage{stage}.block{block}", x, self.width * 2**stage, stride)
        return x

    def _block(self, layers: Layers, name: str, x: Array, width: int, stride: int) -> Array:
        # Of each convolution: channels, size, stride.
        convolutions = [(width, 3, stride), (width, 3, 1)]
        if self.bottleneck:
            convolutions = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
        inside = x
        for number, (channels, size, step) in enumerate(convolutions):
            inside = layers.conv(f"{name}.conv{number}", inside, channels, size, step)
            inside = layers.norm(f"{name}.norm{number}", inside)
            if number < len(convolutions) - 1:
                inside = jax.nn.relu(inside)
        if inside.shape != x.shape:
            x = layers.norm(f"{name}.around.norm", layers.conv(f"{name}.around", x, channels, 1, stride))
        return jax.nn.relu(x + inside)


@dataclass(frozen=True)
class WideResNet(ConvNet):
    """A wide residual network: Zagoruyko and Komodakis, 2016, "Wide Residual Networks".

    Normalisation and activation come before convolutions, which have biases; the second of a block has the
    stride, and a 1 x 1 convolution goes around where its shape changes.

    Attributes:
        first: channels of the first convolution.
    """

    first: int = 16

    def body(self, layers: Layers, x: Array) -> Array:
        x = layers.conv("first", x, self.first, bias=True)
        for stage, blocks in enumerate(self.blocks):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = self._block(layers, f"stage{stage}.block{block}", x, self.width * 2**stage, stride)
        return jax.nn.relu(layers.norm("last.norm", x))

    def _block(self, layers: Layers, name: str, x: Array, width: int, stride: int) -> Array:
        inside = x
        for number, step in enumerate((1, stride)):
            inside = jax.nn.relu(layers.norm(f"{name}.norm{number}", inside))
            inside = layers.conv(f"{name}.conv{number}", inside, width, 3, step, bias=True)
        if inside.shape != x.shape:
            x = layers.conv(f"{name}.around", x, width, 1, stride, bias=True)
        return x + inside


def num_params(network: Network) -> int:
    """How many numbers the parameters of a network are.

    Examples:
        >>> num_params(named_network("mlp200", (28, 28, 1), 10))
        199210
    """
    return sum(math.prod(shape) for shape in network.shapes.values())


BUILDERS: dict[str, Callable[[Any, int], Network]] = {
    "mlp200": lambda shape, outputs: MLP(math.prod(shape), (200, 200), outputs),
    "resnet20": lambda shape, outputs: ResNet(shape, outputs, 16, (3, 3, 3)),
    "resnet50": lambda shape, outputs: ResNet(shape, outputs, 64, (3, 4, 6, 3), bottleneck=True),
    "wrn10-1": lambda shape, outputs: WideResNet(shape, outputs, 16, (1, 1, 1)),
    "wrn28-10": lambda shape, outputs: WideResNet(shape, outputs, 160, (4, 4, 4)),
}


def named_network(name: str, shape: tuple[int, ...], num_outputs: int) -> Network:
    """A published network for images of a shape, by its name.

    Examples:
        >>> named_network("resnet20", (32, 32, 3), 10).width
        16
    """
    if name not in BUILDERS:
        raise unknown("network", name, BUILDERS)
    return BUILDERS[name](shape, num_outputs)
