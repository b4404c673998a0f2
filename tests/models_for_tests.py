"""NumPyro programs of a user, none of which is a network, as a file of his own would have them."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

FREQUENCIES = jax.random.normal(jax.random.key(0), (2, 20))
PHASES = jax.random.uniform(jax.random.key(1), (20,), maxval=2 * jnp.pi)


def groups(x, y=None):
    """A hierarchical logistic regression, not centred: column 0 says which of four groups a row is of."""
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
    base = numpyro.sample("base", dist.Normal(0.0, 1.0).expand((4, 2)).to_event(2))
    slopes = (mean + spread * base)[x[:, 0].astype(int)]
    with numpyro.plate("data", len(x)):
        return numpyro.sample(
            "y", dist.Bernoulli(logits=2.0 * (slopes[:, 0] + slopes[:, 1] * x[:, 1])), obs=y
        )


def _inputs(key, num):
    keys = jax.random.split(key)
    group = jax.random.randint(keys[0], (num,), 0, 4).astype(float)
    return jnp.stack([group, jax.random.normal(keys[1], (num,))], axis=1)


groups.inputs = _inputs


def waves(x, y=None):
    """Like a Gaussian process: random features, and a size that is not known."""
    size = numpyro.sample("size", dist.LogNormal(0.5, 0.5))
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand((20,)).to_event(1))
    features = jnp.cos(x @ FREQUENCIES + PHASES) * jnp.sqrt(2 / 20)
    numpyro.sample(
        "y", dist.Categorical(logits=jnp.outer(size * features @ weights, jnp.array([-1, 1]))), obs=y
    )


waves.input_dim = 2


def heavy(x, y=None):
    """Student's t regression."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand((3,)).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(-1.0, 0.5))
    numpyro.sample("y", dist.StudentT(3.0, x @ slope, scale), obs=y)


heavy.input_dim = 3


def line(x, y=None):
    """Linear regression with noise that is known: its posterior is normal."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand((2,)).to_event(1))
    numpyro.sample("y", dist.Normal(x @ slope, 0.5), obs=y)


line.input_dim = 2
