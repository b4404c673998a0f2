"""Convolutional networks: published counts of parameters, and an independent forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pp_testbed as pt
from pp_testbed.models.networks import used_by
from pp_testbed.models.vision import ResNet, WideResNet, named_network, num_params

KEY = jax.random.key(0)
CIFAR, MNIST = (32, 32, 3), (28, 28, 1)
TINY = {
    "basic": ResNet((8, 8, 3), 3, width=8, blocks=(1, 2)),
    "bottleneck": ResNet((8, 8, 3), 3, width=8, blocks=(1, 1, 1, 1), bottleneck=True),
    "wide": WideResNet((8, 8, 3), 3, width=16, blocks=(1, 2), first=8),
}


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("mlp200", MNIST, 10, 199_210),
        ("resnet50", CIFAR, 10, 23_520_842),
        ("resnet50", CIFAR, 100, 23_705_252),
        ("wrn28-10", CIFAR, 10, 36_489_290),
        ("wrn28-10", CIFAR, 100, 36_546_980),
    ],
)
def test_published_networks_have_as_many_parameters(name, shape, classes, count):
    assert num_params(named_network(name, shape, classes)) == count


def random_params(network):
    """Different from where training starts, so that no scale is 1 and no shift 0."""
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in network.shapes.items()}


def convolved(x, kernel, stride, bias=0.0):
    """By the definition: a sum over the places of the kernel."""
    size = kernel.shape[0]
    num, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (size // 2,) * 2, (size // 2,) * 2, (0, 0)))
    tall, wide = -(-height // stride), -(-width // stride)
    y = np.zeros((num, tall, wide, kernel.shape[3]))
    for row in range(tall):
        for column in range(wide):
            patch = padded[:, row * stride : row * stride + size, column * stride : column * stride + size]
            y[:, row, column] = np.tensordot(patch, kernel, axes=3)
    return y + bias


def normalised(x, scale, shift):
    """Group by group."""
    groups = {8: 2, 16: 4, 32: 8, 64: 16, 128: 32, 256: 32}[x.shape[-1]]
    y = np.empty_like(x)
    for part in np.array_split(np.arange(x.shape[-1]), groups):
        values = x[..., part]
        mean, variance = (f(values, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.var))
        y[..., part] = (values - mean) / np.sqrt(variance + 1e-5)
    return y * scale + shift


def residual(network, p, x):
    """The forward pass of `ResNet` in NumPy."""

    def norm(name, x):
        return normalised(x, p[f"{name}.scale"], p[f"{name}.shift"])

    x = np.maximum(norm("first.norm", convolved(x, p["first.kernel"], 1)), 0)
    for stage, blocks in enumerate(network.blocks):
        for block in range(blocks):
            at, stride = f"stage{stage}.block{block}", 2 if stage and not block else 1
            strides = (1, stride, 1) if network.bottleneck else (stride, 1)
            y = x
            for i, step in enumerate(strides):
                y = norm(f"{at}.norm{i}", convolved(y, p[f"{at}.conv{i}.kernel"], step))
                y = y if i == len(strides) - 1 else np.maximum(y, 0)
            if f"{at}.around.kernel" in p:
                x = norm(f"{at}.around.norm", convolved(x, p[f"{at}.around.kernel"], stride))
            x = np.maximum(x + y, 0)
    return x.mean(axis=(1, 2)) @ p["last.kernel"] + p["last.bias"]


def wide_residual(network, p, x):
    """The forward pass of `WideResNet` in NumPy."""
    x = convolved(x, p["first.kernel"], 1, p["first.bias"])
    for stage, blocks in enumerate(network.blocks):
        for block in range(blocks):
            at, stride = f"stage{stage}.block{block}", 2 if stage and not block else 1
            y = x
            for i, step in enumerate((1, stride)):
                y = np.maximum(normalised(y, p[f"{at}.norm{i}.scale"], p[f"{at}.norm{i}.shift"]), 0)
                y = convolved(y, p[f"{at}.conv{i}.kernel"], step, p[f"{at}.conv{i}.bias"])
            if f"{at}.around.kernel" in p:
                x = convolved(x, p[f"{at}.around.kernel"], stride, p[f"{at}.around.bias"])
            x = x + y
    x = np.maximum(normalised(x, p["last.norm.scale"], p["last.norm.shift"]), 0)
    return x.mean(axis=(1, 2)) @ p["last.kernel"] + p["last.bias"]


@pytest.mark.parametrize("name", TINY)
def test_outputs_equal_an_independent_forward_pass(name):
    """Of two images, and of one alone: no output depends on another image."""
    network, params = TINY[name], random_params(TINY[name])
    x = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)
    forward = wide_residual if name == "wide" else residual
    expected = forward(network, {key: value.astype(float) for key, value in params.items()}, x.astype(float))
    apply, rows = jax.jit(network.apply), jnp.asarray(x.reshape(2, -1))
    # A dozen layers of sums of some hundred numbers, in single precision.
    errors = {"rtol": 2e-4, "atol": 2e-4 * np.abs(expected).max()}
    np.testing.assert_allclose(apply(params, rows), expected, **errors)
    np.testing.assert_allclose(apply(params, rows[1:]), expected[1:], **errors)


@pytest.mark.parametrize("name", TINY)
def test_features_are_what_enters_the_last_layer(name):
    network, x = TINY[name], jnp.ones((2, 192))
    params = jax.jit(network.init)(KEY)
    features, outputs = jax.jit(lambda params: (network.features(params, x), network.apply(params, x)))(
        params
    )
    np.testing.assert_allclose(features @ params["last.kernel"] + params["last.bias"], outputs, rtol=1e-5)
    assert used_by(network.features, params, x) == params.keys() - set(network.last_layer)
    assert {name: leaf.shape for name, leaf in params.items()} == network.shapes


def test_images_that_do_not_fit_are_answered_in_one_line():
    with pytest.raises(pt.UsageError, match="at least 8 x 8 pixels for 4 stages"):
        ResNet((4, 4, 1), 10, 8, (1, 1, 1, 1))
    network = TINY["basic"]
    with pytest.raises(pt.UsageError, match=r"inputs have 64 numbers; images of shape \(8, 8, 3\) have 192"):
        network.apply(network.init(KEY), jnp.zeros((1, 64)))
    with pytest.raises(pt.UsageError, match="did you mean 'resnet50'"):
        named_network("resnet5", CIFAR, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_tiny_networks_learn_64_images_by_heart(name):
    network = TINY[name]
    x = jax.random.normal(KEY, (64, 192))
    y = jax.random.randint(jax.random.key(1), (64,), 0, 3)
    task = pt.task(pt.GenerativeMLP(192, 3), x, y)
    learner = pt.method("mlp", network=network, num_steps=60, l2=1e-3, learning_rate=1e-2)
    outputs = learner.fit(KEY, task).logits(KEY, x)[0]
    assert (outputs.argmax(axis=-1) == y).all()
