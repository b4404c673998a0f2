"""What a prediction costs once it is bought: time at one input, numbers to keep, and a file to take away.

How long fitting takes is in results. `save_predictor` writes a program without this package's code, which JAX
(and flatbuffers) alone reads back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from pp_testbed.engine.jobs import one_line
from pp_testbed.engine.store import write_whole
from pp_testbed.errors import UsageError, check_whole
from pp_testbed.inference.posterior import (
    Finite,
    Posterior,
    Sampled,
    as_posterior,
    predictive_mean,
)
from pp_testbed.models.base import Array, Task, check_inputs

WARM = 50  # calls that are not counted


@dataclass(frozen=True)
class Latency:
    """How long a prediction takes, and what a posterior holds.

    Attributes:
        median: seconds of one function at one input.
        p99: the 99th percentile of them.
        num_draws: functions in a prediction.
        parameters: numbers in one function; None of any Python, as are bytes.
        bytes: of the whole posterior, from which functions are drawn.
    """

    median: float
    p99: float
    num_draws: int
    parameters: int | None
    bytes: int | None

    @property
    def prediction(self) -> float:
        """Seconds of a prediction by all functions, one after another."""
        return self.median * self.num_draws

    def asdict(self) -> dict[str, Any]:
        """As a row of a table."""
        return {**asdict(self), "prediction": self.prediction}


def latency(posterior: Posterior, x: Array, *, num_draws: int = 100, calls: int = 1000) -> Latency:
    """Time one function of a posterior at one input after another: compiled, if JAX can.

    It is of as many threads as JAX was started with; `pp-testbed latency` has one.

    Args:
        posterior: any.
        x: inputs [N, d], which are taken in turn.
        num_draws: functions in a prediction of a posterior that is not finite.
        calls: of which the median and the 99th percentile are taken, after some that are not counted.

    Examples:
        >>> latency(posterior, problem.task.x, calls=100).parameters  # 2-50-50-2
        2802
    """
    check_inputs(x)
    check_whole("calls", calls, least=1)
    check_whole("num_draws", num_draws, least=1)
    posterior = as_posterior(posterior)
    key, rows = jax.random.key(0), [jnp.asarray(x)[i : i + 1] for i in range(min(len(x), 100))]
    if isinstance(posterior, Finite | Sampled):
        held = posterior.without_history()
        functions = posterior.draw(key, num_draws)
        draw = jax.tree.map(lambda leaf: leaf[0], functions.draws)
        compiled = jax.jit(functions.function).lower(draw, rows[0]).compile()
        seconds = _seconds(lambda row: compiled(draw, row), rows, calls)
        parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(draw))
        number = len(functions.log_weights)
        stored = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(held))
    else:
        parameters, stored = None, None
        number = len(posterior.logits(key, rows[0], num_draws))
        seconds = _seconds(lambda row: posterior.logits(key, row, num_draws), rows, calls)
        seconds = seconds / number
    median, p99 = np.quantile(seconds, [0.5, 0.99]).tolist()
    return Latency(median, p99, number, parameters, stored)


def _seconds(call: Callable[[Array], Array], rows: list[Array], calls: int) -> np.ndarray:
    """How long each call took [calls]."""
    seconds = np.empty(WARM + calls)
    for place in range(WARM + calls):
        row = rows[place % len(rows)]
        start = time.perf_counter()
        jax.block_until_ready(call(row))
        seconds[place] = time.perf_counter() - start
    return seconds[WARM:]


def save_predictor(
    posterior: Posterior, task: Task, path: str | os.PathLike[str], *, num_draws: int = 100
) -> Path:
    """Write what a posterior predicts, inputs [N, d] to `predictive_mean`, as a program of `jax.export`.

    Args:
        posterior: that JAX can compile.
        task: of which it is: inputs and likelihood.
        path: the file, which must not be there.
        num_draws: functions of a posterior that is not finite.

    Examples:
        >>> file = save_predictor(posterior, problem.task, "predictor.jax")
        >>> load_predictor(file)(problem.task.x[:3]).shape
        (3, 2)
    """
    check_whole("num_draws", num_draws, least=1)
    posterior, file = as_posterior(posterior), Path(path)
    if file.exists():
        raise UsageError(f"{file} is there; give another name")
    if not isinstance(posterior, Finite | Sampled):
        raise UsageError(f"{type(posterior).__name__} is any Python; expected what JAX can compile")
    functions = posterior.draw(jax.random.key(0), num_draws)
    program = jax.jit(lambda x: predictive_mean(functions, task.likelihood, x))
    (rows,) = export.symbolic_shape("rows")
    inputs = jax.ShapeDtypeStruct((rows, task.input_dim), jnp.float32)
    try:
        written = export.export(program)(inputs).serialize()
    except Exception as error:
        words = f"JAX cannot write this program for any number of inputs: {one_line(error)}"
        raise UsageError(words) from error
    try:
        write_whole(file, lambda stream: stream.write(written))
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None
    return file


def load_predictor(path: str | os.PathLike[str]) -> Callable[[Array], Array]:
    """Read what `save_predictor` wrote."""
    try:
        return jax.jit(export.deserialize(bytearray(Path(path).read_bytes())).call)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:
        raise UsageError(f"{path} is not a program of jax.export, or of another version") from error
