"""Networks of any make: what is trained is the same whoever wrote it, and mistakes are said."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

import pp_testbed as pt
from pp_testbed.engine.identity import config_text
from pp_testbed.inference.mcmc import Target
from pp_testbed.inference.subspace import last_layer
from pp_testbed.models.networks import MLP, BayesianNetwork, ModuleNetwork, used_by


@dataclass(frozen=True)
class Renamed:
    """A perceptron by another name, whose parameters have other names: nothing of it can be guessed."""

    inner: MLP

    @property
    def shapes(self):
        return {f"{name}.of": shape for name, shape in self.inner.shapes.items()}

    @property
    def last_layer(self):
        return tuple(f"{name}.of" for name in self.inner.last_layer)

    def init(self, key):
        return {f"{name}.of": value for name, value in self.inner.init(key).items()}

    def apply(self, params, x):
        return self.inner.apply({name.removesuffix(".of"): value for name, value in params.items()}, x)

    def features(self, params, x):
        return self.inner.features({name.removesuffix(".of"): value for name, value in params.items()}, x)


AGENTS = {
    "mlp": {},
    "ensemble": {"size": 2},
    "ensemble+": {"size": 2},
    "ensemble-ntk": {"size": 2},
    "bbb": {"particles": 1},
    "hypermodel": {"num_index_samples": 1},
    "epinet": {"num_index_samples": 1},
    "laplace": {},
    "laplace-last-layer": {},
    "deep-kernel": {},
    "swag": {},
    "subspace-ess": {"num_draws": 20},
    "sgld": {"num_steps": 40, "burn_in": 20, "thinning": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_takes_any_network(name):
    """The same network under other names gives the same posterior, to rounding."""
    problem = pt.problem("2d/T30-rho0.1-s0")
    steps = {} if "num_steps" in AGENTS[name] else {"num_steps": 30}
    x = jax.random.normal(jax.random.key(1), (7, 2))
    found = []
    for network in (MLP(2, (8,), 2), Renamed(MLP(2, (8,), 2))):
        options = AGENTS[name] | steps | {"network": network}
        posterior = pt.method(name, **options).fit(jax.random.key(0), problem.task)
        found.append(np.asarray(posterior.logits(jax.random.key(2), x, 10)))
    if name in ("bbb", "hypermodel", "epinet", "swag", "sgld", "laplace", "subspace-ess"):
        assert found[1].shape == found[0].shape  # what is drawn for a site depends on the order of names
        assert np.isfinite(found[1]).all()
    else:
        np.testing.assert_allclose(found[1], found[0], rtol=2e-3, atol=2e-3)


def test_the_network_of_a_task_is_that_of_its_program():
    def program(x, y=None):
        numpyro.sample("y", numpyro.distributions.Bernoulli(logits=x @ numpyro.sample("b", PRIOR)), obs=y)

    program.input_dim, program.network = 2, MLP(2, (3,), 2, "tanh")
    task = pt.problem(model=program, num_train=20).task
    made = pt.method("mlp", num_steps=5).fit(jax.random.key(0), task)
    assert made.draws["w0"].shape == (1, 2, 3)
    linear = pt.method("logistic", num_steps=5).fit(jax.random.key(0), task)
    assert linear.draws["w0"].shape == (1, 2, 2)

    class Program:
        input_dim = 2

        def network(self):
            """A method of a user's own, which means something else."""

        def likelihood(self):
            """The same."""

        def __call__(self, x, y=None):
            return program(x, y)

    assert pt.problem(model=Program(), num_train=20).task.network is None


PRIOR = numpyro.distributions.Normal(0.0, 1.0).expand((2,)).to_event(1)


def test_dropout_says_what_it_needs():
    made = pt.method("dropout", network=Renamed(MLP(2, (3,), 2)))
    with pytest.raises(pt.UsageError, match="which Renamed does not say; expected MLP"):
        made.fit(jax.random.key(0), pt.problem(num_train=3).task)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (MLP(2, (3,), 5), r"outputs at 1 input have shape \(1, 5\); expected \(1, 2\)"),
        (MLP(7, (3,), 2), r"cannot be run on inputs \[1, 2\]"),
    ],
)
def test_a_network_of_other_sizes_is_said(network, words):
    with pytest.raises(pt.UsageError, match=words) as error:
        pt.method("mlp", network=network).fit(jax.random.key(0), pt.problem(num_train=3).task)
    assert "\n" not in str(error.value)


def test_an_option_that_was_added_orphans_no_results():
    plain = config_text(method=pt.method("mlp"))
    assert '"network"' not in plain
    assert config_text(method=pt.method("mlp", network=MLP(2, (3,), 2))) != plain


def program(x):
    """Features of tanh, and a linear layer of them."""
    return features(x) @ numpyro.param("head", lambda key: jax.random.normal(key, (4, 2)))


def features(x):
    return jnp.tanh(x.reshape(len(x), -1) @ numpyro.param("body", lambda key: jax.random.normal(key, (6, 4))))


@pytest.mark.slow
def test_a_program_is_a_network_with_inputs_of_any_shape():
    network = ModuleNetwork(program, 6, features, shape=(2, 3))
    assert network.shapes == {"body": (6, 4), "head": (4, 2)}
    assert network.last_layer == ("head",)
    params = network.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 6))
    hidden = np.tanh(np.asarray(x) @ np.asarray(params["body"]))
    np.testing.assert_allclose(network.features(params, x), hidden, rtol=1e-5)
    np.testing.assert_allclose(network.apply(params, x), hidden @ np.asarray(params["head"]), rtol=1e-5)
    other = network.init(jax.random.key(1))
    assert not np.allclose(other["body"], params["body"])
    task = pt.task(pt.GenerativeMLP(input_dim=6), x, [0, 1, 0, 1, 1])
    directions = last_layer(Target(BayesianNetwork(network, 1.0), task))
    assert directions.shape == (32, 8)
    assert float(directions[:24].sum()) == 0.0
    made = pt.method("laplace-last-layer", network=network, num_steps=20).fit(jax.random.key(0), task)
    assert np.isfinite(made.logits(jax.random.key(0), x, 5)).all()


def test_a_network_without_features_says_so():
    with pytest.raises(pt.UsageError, match="give it to_features"):
        _ = ModuleNetwork(program, 6).last_layer


def test_what_a_function_depends_on_is_read_off_its_trace():
    params = {"a": jnp.ones(2), "b": jnp.ones(2), "c": jnp.ones(2)}
    assert used_by(lambda p, x: jax.nn.relu(p["a"] * x) + 0.0 * p["c"], params, 1.0) == {"a", "c"}
    assert used_by(lambda p, x: jax.jit(lambda q: q["a"] * x)(p), params, 1.0) == {"a"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: x @ numpyro.sample("w", numpyro.distributions.Normal().expand((2, 2))), "samples w"),
        (
            lambda x: x * numpyro.param("w", 1.0, constraint=numpyro.distributions.constraints.positive),
            "parameter w has a constraint",
        ),
    ],
)
def test_what_is_no_network_is_said(wrong, words):
    with pytest.raises(pt.UsageError, match=words):
        _ = ModuleNetwork(wrong, 2).shapes
    with pytest.raises(pt.UsageError, match=r"network is 3; expected one of models\.networks"):
        pt.method("mlp", network=3)


def test_features_of_all_parameters_leave_no_last_layer():
    with pytest.raises(pt.UsageError, match="depends on all parameters"):
        _ = ModuleNetwork(program, 6, program).last_layer


def test_modules_of_flax_are_networks():
    nnx = pytest.importorskip("flax.nnx")
    from numpyro.contrib.module import nnx_module

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.body, self.head = nnx.Linear(2, 5, rngs=rngs), nnx.Linear(5, 2, rngs=rngs)

        def __call__(self, x, to_features=False):
            hidden = jax.nn.relu(self.body(x))
            return hidden if to_features else self.head(hidden)

    def net():
        return nnx_module("net", Net(nnx.Rngs(numpyro.prng_key())))

    network = ModuleNetwork(lambda x: net()(x), 2, lambda x: net()(x, to_features=True))
    assert network.shapes["net$params.body.kernel"] == (2, 5)
    assert set(network.last_layer) == {"net$params.head.kernel", "net$params.head.bias"}
    judged_like_a_perceptron(network)


def test_modules_of_equinox_are_networks():
    eqx = pytest.importorskip("equinox")
    from numpyro.contrib.module import eqx_module

    def to_logits(x):
        made = eqx_module("net", eqx.nn.MLP(2, 2, 5, 1, key=numpyro.prng_key()))
        return jax.vmap(made)(x)

    judged_like_a_perceptron(ModuleNetwork(to_logits, 2))


def judged_like_a_perceptron(network):
    """Members start at different places, and learn: they are closer to the truth than `uniform`."""
    problem = pt.problem("2d/T100-rho0.1-s0")
    scores = {}
    for name, options in {
        "ensemble": {"network": network, "size": 3, "learning_rate": 1e-2},
        "uniform": {},
    }.items():
        posterior = pt.method(name, **options).fit(problem.keys.fit, problem.task)
        scores[name] = pt.evaluate(posterior, problem, key=problem.keys.evaluate, num_batches=50).kl_marginal
        if options:
            members = np.asarray(posterior.logits(jax.random.key(0), problem.task.x[:5]))
            assert members.std(axis=0).max() > 1e-3
    assert scores["ensemble"] < 0.7 * scores["uniform"]


def test_running_means_are_refused():
    nnx = pytest.importorskip("flax.nnx")
    from numpyro.contrib.module import nnx_module

    def normalised(x):
        return nnx_module("net", nnx.BatchNorm(2, rngs=nnx.Rngs(numpyro.prng_key())))(x)

    with pytest.raises(pt.UsageError, match="state that changes"):
        _ = ModuleNetwork(normalised, 2).shapes
