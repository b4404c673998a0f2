"""Problems whose truth is labels that were held out: a data set, a split by seed, and a model of it.

Inputs are standardised by the training part, and numbers that are predicted too, so that scores of numbers
are in units of their standard deviation. The seed decides the split, and in which order training data come:
those of T are the first T of more.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError
from pp_testbed.models.base import HeldOut, Task
from pp_testbed.models.mlp import GenerativeMLP
from pp_testbed.models.own import OwnModel
from pp_testbed.models.regression import RegressionMLP
from pp_testbed.problems.base import BaseProblem, key_of
from pp_testbed.problems.datasets import SETS, DataSet, data_set, kinds_of_rows
from pp_testbed.problems.synthetic import MODELS, family, make_model

TEST_SHARE = 0.2
HIDDEN = (50,)  # units of the network, as is usual for tables; NUTS takes a minute on 1000 rows
TEMPERATURE = 0.1  # of the network that classes are explained by, unless another is given


@dataclass(frozen=True)
class DataProblem(BaseProblem):
    """A task of real data, and the labels that were held out.

    Examples:
        >>> problem = of_data("iris", num_train=100)
        >>> problem.name, problem.task.x.shape, problem.truth.x.shape
        ('iris/T100-s0', (100, 4), (30, 4))
    """

    data: DataSet

    @property
    def group(self) -> str:
        """The data set."""
        return self.data.name

    @property
    def kind(self) -> str:
        """What it is but for its seed: the data, the model if it is not the usual one, and T."""
        model = [] if _is_usual(self.model, self.data) else [family(self.model), *self.model.settings]
        return "/".join(["+".join([self.data.name, *model]), f"T{self.num_train}"])

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, HeldOut]:
        """Training data in their order, standardised, and what is held out."""
        train, test = split(self.data, self.seed)
        if self.num_train > len(train[0]):
            raise UsageError(
                f"{self.data.name} has {len(train[0])} training data; {self.num_train} are asked for"
            )
        x, x_test = standardised(train[0], test[0])
        y, y_test = train[1], test[1]
        if not self.data.num_classes:
            mean, spread = y.mean(), y.std()
            if spread == 0:
                raise UsageError(
                    f"all labels of the training part of {self.name} are {y[0]:g}: try another seed"
                )
            y, y_test = (y - mean) / spread, (y_test - mean) / spread
        truth = HeldOut(
            jnp.asarray(x_test), jnp.asarray(y_test), self.model.likelihood, self.data.num_classes
        )
        return x, y, truth

    @property
    def num_test(self) -> int:
        """Rows that are held out."""
        return len(self._parts[2].y)

    def draw(self, num_rows: int | None = None) -> tuple[Task, HeldOut]:
        """The task, padded to so many rows (`padded_size` if None), and what is held out."""
        x, y, truth = self._parts
        rows = np.arange(num_rows or self.padded_size) % self.num_train
        return Task(self.model, jnp.asarray(x[rows]), jnp.asarray(y[rows]), self.num_train), truth

    @property
    def environment(self) -> HeldOut:
        """There is none: nobody knows the truth of data."""
        raise UsageError(
            f"{self.name} is of real data, whose environment nobody knows; expected a synthetic problem"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        data = self.data.name if self.data.is_named else self.data
        return _again, (self.model, self.num_train, self.seed, data)


def _again(model: Any, num_train: int, seed: int, data: Any) -> DataProblem:
    return DataProblem(model, num_train, seed, data_set(data) if isinstance(data, str) else data)


def split(data: DataSet, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels of the training part, and of the test part, standard or a fifth of rows."""
    order = np.asarray(jax.random.permutation(key_of(f"{data.name}-s{seed}"), len(data.y)))
    if data.x_test is not None and data.y_test is not None:
        return (data.x[order], data.y[order]), (data.x_test, data.y_test)
    test = held_out_rows(data.x, order)
    train = order[~np.isin(order, test)]
    return (data.x[train], data.y[train]), (data.x[test], data.y[test])


def held_out_rows(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """A fifth of the rows, the first of an order, and all that equal one: none of them was learnt from.

    Where most rows are there several times, as in a table of a few categories, equal ones are not the same
    case.
    """
    kinds, are_cases = kinds_of_rows(x)
    first = order[: max(1, round(TEST_SHARE * len(order)))]
    return order[np.isin(kinds[order], kinds[first])] if are_cases else first


def standardised(x: np.ndarray, x_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns in units of the training part's mean and standard deviation, a missing value at its mean.

    A column that is constant there says nothing, and is 0.
    """
    with warnings.catch_warnings():  # of a column that is missing in all of the training part
        warnings.simplefilter("ignore", RuntimeWarning)
        mean, spread = np.nanmean(x, axis=0, dtype=np.float64), np.nanstd(x, axis=0, dtype=np.float64)
    scale = np.where(spread > 1e-7 * np.abs(mean) + 1e-30, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)
    made = (np.nan_to_num((part - mean) * scale).astype(np.float32) for part in (x, x_test))
    return next(made), next(made)


def _is_usual(model: Any, data: DataSet) -> bool:
    return not isinstance(model, OwnModel) and model == usual_model(data)


def usual_model(data: DataSet, temperature: float | None = None) -> Any:
    """The network of the testbed, of one hidden layer, with so many inputs and classes."""
    if not data.num_classes:
        if temperature is not None:
            raise UsageError(f"labels of {data.name} are numbers, and their network has no temperature")
        return RegressionMLP(data.num_columns, HIDDEN)
    rho = TEMPERATURE if temperature is None else temperature
    return GenerativeMLP(data.num_columns, data.num_classes, HIDDEN, temperature=rho)


def of_data(
    data: DataSet | str,
    *,
    num_train: int | None = None,
    seed: int = 0,
    model: Any = None,
    temperature: float | None = None,
) -> DataProblem:
    """A problem of a data set.

    Args:
        data: a set or its name.
        num_train: T; all of the training part if None.
        seed: of the split and the order of data.
        model: a NumPyro program, or `file.py:NAME`; the testbed's network if None.
        temperature: of that network; 0.1 if None.
    """
    data = data_set(data) if isinstance(data, str) else data
    made = (
        usual_model(data, temperature)
        if model is None
        else make_model(model, temperature, **_own_inputs(model, data))
    )
    if made.input_dim != data.num_columns:
        raise UsageError(f"the model has {made.input_dim} inputs; {data.name} has {data.num_columns} columns")
    if made.num_classes != data.num_classes:
        of = [f"{one} classes" if one else "numbers" for one in (made.num_classes, data.num_classes)]
        raise UsageError(f"the model's labels are {of[0]}; those of {data.name} are {of[1]}")
    x = split(data, seed)[0][0]
    number = len(x) if num_train is None else num_train
    if number > len(x):
        raise UsageError(f"{data.name} has {len(x)} training data; {number} are asked for")
    return DataProblem(made, number, seed, data)


def _own_inputs(model: Any, data: DataSet) -> dict[str, Any]:
    """The inputs of a program on data: those of the data."""
    if isinstance(model, OwnModel):
        return {}
    if isinstance(model, str) and model in MODELS:
        raise UsageError(f"the model of data is a program, as my_model.py:MODEL, and not {model!r}")
    return {"x": standardised(data.x, data.x)[0]}


_NAME = re.compile(r"(?P<data>\w+)/T(?P<num_train>\d+)-s(?P<seed>\d+)")


def of_name(name: str) -> DataProblem | None:
    """The problem of a name, if it is one of a named set, with the usual model."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None or match["data"] not in SETS:
        return None
    return of_data(match["data"], num_train=int(match["num_train"]), seed=int(match["seed"]))
