"""Problems whose truth is labels that were held out: a data set, a split by seed, and a model of it.

Inputs are standardised by the training part, and numbers that are predicted too, so that scores of numbers
are in units of their standard deviation. The seed decides the split, and in which order training data come:
those of T are the first T of more.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pp_testbed.errors import UsageError, check_whole, unknown
from pp_testbed.models.base import HeldOut, Task
from pp_testbed.models.mlp import GenerativeMLP
from pp_testbed.models.networks import NetworkModel
from pp_testbed.models.own import OwnModel
from pp_testbed.models.regression import RegressionMLP
from pp_testbed.models.vision import named_network
from pp_testbed.problems import synthetic
from pp_testbed.problems.base import BaseProblem, key_of
from pp_testbed.problems.datasets import SETS, data_set
from pp_testbed.problems.rows import DataSet
from pp_testbed.problems.synthetic import MODELS, family, kind_of, make_model

REVISION = 1  # of how rows are split, and what methods are told of them
TEST_SHARE = 0.2
TEST_ROWS = 10_000  # at most: their errors are small, and the rest is of more use to learn from
VALIDATION_ROWS = 2000  # at most, of the part of training data that tuning looks at
NUM_SPLITS, FEWER_SPLITS = 20, {"protein": 5}  # how many of `GAL` are published
STANDARD, GAL = "", "gal"  # what is held out: see `split_rows`
VALIDATION = {STANDARD: "validation", GAL: "gal-validation"}  # of the training data of each
SPLITS = (STANDARD, GAL, *VALIDATION.values())
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

    is_of_data: ClassVar[bool] = True
    data: DataSet
    split: str = STANDARD

    @property
    def group(self) -> str:
        """The data set."""
        return self.data.name

    @cached_property
    def kind(self) -> str:
        """What it is but for its seed: the data, the model if not the usual, T, and another split."""
        model = [] if _is_usual(self.model, self.data) else [family(self.model), *self.model.settings]
        split = [self.split] if self.split else []
        is_all = self.num_train == len(split_rows(self.data, self.seed, self.split).train)
        number = "all" if is_all else str(self.num_train)  # how many all are may depend on the seed
        return "/".join(["+".join([self.data.name, *model]), "-".join([f"T{number}", *split])])

    @property
    def revision(self) -> int:
        """Of its model, and of how data become a problem."""
        return self.model.revision + REVISION

    @cached_property
    def num_test(self) -> int:
        """Rows that are held out."""
        return len(split_rows(self.data, self.seed, self.split).y_test)

    @property
    def judged_by(self) -> tuple[Any, ...]:
        sizes = tuple((name, len(x)) for name, x in sorted(self.data.elsewhere.items()))
        return sizes, self.data.costs is not None

    @property
    def tuned_on(self) -> tuple[DataProblem, ...]:
        """What methods are tuned on for it: a part of its training data is held out, and never its test part.

        Where a test part is standard, all seeds have the same one, and one of them is enough.
        """
        if self.split not in VALIDATION:
            return (self,)
        split, seed = VALIDATION[self.split], self.seed if self.data.x_test is None else 0
        number = len(split_rows(self.data, seed, split).train)
        return (replace(self, num_train=min(self.num_train, number), seed=seed, split=split),)

    def draw(self, num_rows: int | None = None) -> tuple[Task, HeldOut]:
        """The task, padded to so many rows (`padded_size` if None), and what is held out."""
        parts = split_rows(self.data, self.seed, self.split)
        scales = _moments(self.data, self.seed, self.split)
        rows = parts.train[np.arange(num_rows or self.padded_size) % self.num_train]
        x, x_test = (standardised(part, *scales) for part in (self.data.x[rows], parts.x_test))
        y, y_test = self.data.y[rows], parts.y_test
        if not self.data.num_classes:
            every = self.data.y[parts.train]
            mean, spread = every.mean(axis=0), every.std(axis=0)
            if np.any(spread == 0):
                raise UsageError(
                    f"all labels of the training part of {self.name} are {every[0]}: try another seed"
                )
            y, y_test = (y - mean) / spread, (y_test - mean) / spread
        costs = self.data.costs
        truth = HeldOut(
            jnp.asarray(x_test),
            jnp.asarray(y_test),
            self.model.likelihood,
            self.data.num_classes,
            {name: jnp.asarray(standardised(x, *scales)) for name, x in self.data.elsewhere.items()},
            None if costs is None else jnp.asarray(costs, dtype=jnp.float32),
        )
        task = Task(self.model, jnp.asarray(x), jnp.asarray(y), self.num_train, is_of_data=self.is_of_data)
        if isinstance(self.model, OwnModel):  # a method sees no inputs but those that it learns from
            task = replace(task, model=replace(self.model, domain=task.x))
        return task, truth

    @property
    def environment(self) -> HeldOut:
        """There is none: nobody knows the truth of data."""
        raise UsageError(
            f"{self.name} is of real data, whose environment nobody knows; expected a synthetic problem"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        data = self.data.name if self.data.is_named else self.data
        return _again, (self.model, self.num_train, self.seed, data, self.split)


def _again(model: Any, num_train: int, seed: int, data: Any, split: str) -> DataProblem:
    return DataProblem(model, num_train, seed, data_set(data) if isinstance(data, str) else data, split)


class Split(NamedTuple):
    """Which rows of a set are learnt from, in their order, and what is held out."""

    train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@lru_cache(maxsize=8)
def split_rows(data: DataSet, seed: int, how: str = STANDARD) -> Split:
    """The training rows of a set, in their order, and the test part: standard, or a fifth of the rows.

    A fifth is at most `TEST_ROWS`, and a published test part is as it is.

    Args:
        how: "" as above; "gal", the published splits of regression sets; or the validation part of either,
            where the last fifth of the training rows, at most `VALIDATION_ROWS`, is held out, and the test
            part left alone.
    """
    of = next((one for one, name in VALIDATION.items() if name == how), None)
    if of is not None:
        test, others = split_off(data, split_rows(data, seed, of).train[::-1], VALIDATION_ROWS)
        return Split(others[::-1], data.x[test], data.y[test])
    if how == GAL:
        train, test = gal_split(len(data.y), seed)
        return Split(train, data.x[test], data.y[test])
    order = np.asarray(jax.random.permutation(key_of(f"{data.name}-s{seed}"), len(data.y)))
    if data.x_test is not None and data.y_test is not None:
        return Split(order, data.x_test, data.y_test)
    test, others = split_off(data, order, TEST_ROWS)
    return Split(others, data.x[test], data.y[test])


def split_off(data: DataSet, order: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """A fifth of some rows, at most so many, the first of an order; and the others, but those that equal one.

    So none that is learnt from is held out. How many are held out depends on no seed, so that seeds share
    programs. Where most rows are there several times, as in a table of a few categories, equal ones are not
    the same case.
    """
    kinds, are_cases = data.kinds
    number = max(1, min(round(TEST_SHARE * len(order)), most))
    test, others = order[:number], order[number:]
    return test, others[~np.isin(kinds[others], kinds[test])] if are_cases else others


def gal_split(num_rows: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of one of the 20 splits (5 of protein) of the published regression benchmark.

    Of Hernández-Lobato and Adams, 2015, as Gal and Ghahramani, 2016, published them: a tenth is held out;
    all splits are drawn one after another by NumPy's generator of seed 1.
    """
    generator = np.random.RandomState(1)
    for _ in range(number + 1):
        order = generator.choice(num_rows, num_rows, replace=False)
    cut = round(0.9 * num_rows)
    return order[:cut], order[cut:]


@lru_cache(maxsize=256)
def _moments(data: DataSet, seed: int, how: str) -> tuple[np.ndarray, np.ndarray]:
    rows = data.x[np.sort(split_rows(data, seed, how).train)]
    if data.network:  # the pixels of an image are of one kind
        mean, scale = moments(rows.reshape(-1, 1))
        return np.broadcast_to(mean, rows.shape[1:]), np.broadcast_to(scale, rows.shape[1:])
    return moments(rows)


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each column, and what it is multiplied by to have a standard deviation of 1.

    A column that is constant says nothing, and is multiplied by 0.
    """
    with warnings.catch_warnings():  # of a column that is missing everywhere
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.asarray(np.nanmean(x, axis=0, dtype=np.float64))
        blocks = np.array_split(x, 1 + x.size // 2**24)  # in double precision a large set is twice as large
        squares = np.sum([np.nansum((block - mean) ** 2, axis=0) for block in blocks], axis=0)
        spread = np.sqrt(squares / np.sum(~np.isnan(x), axis=0))
    known = spread > 1e-7 * np.abs(mean) + 1e-30
    return mean, np.where(known, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)


def standardised(x: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Columns in units of the training part's mean and standard deviation, a missing value at its mean."""
    blocks = np.array_split(x, 1 + x.size // 2**24)
    return np.concatenate([np.nan_to_num((block - mean) * scale).astype(np.float32) for block in blocks])


def _is_usual(model: Any, data: DataSet) -> bool:
    return not isinstance(model, OwnModel) and model == usual_model(data)


def usual_model(data: DataSet, temperature: float | None = None) -> Any:
    """The network of the testbed, of one hidden layer, with so many inputs and classes."""
    if not data.num_classes:
        if temperature is not None:
            raise UsageError(f"labels of {data.name} are numbers, and their network has no temperature")
        return RegressionMLP(data.num_columns, HIDDEN, targets=data.num_targets)
    if data.network:
        network = named_network(data.network, (*data.shape, 1)[:3], data.num_classes)
        return NetworkModel(network, data.num_columns, data.num_classes)
    rho = TEMPERATURE if temperature is None else temperature
    return GenerativeMLP(data.num_columns, data.num_classes, HIDDEN, temperature=rho)


def of_data(
    data: DataSet | str,
    *,
    num_train: int | None = None,
    seed: int = 0,
    model: Any = None,
    temperature: float | None = None,
    split: str = STANDARD,
) -> DataProblem:
    """A problem of a data set.

    Args:
        data: a set or its name.
        num_train: T; all of the training part if None.
        seed: of the split and the order of data.
        model: a NumPyro program, or `file.py:NAME`; the testbed's network if None.
        temperature: of that network; 0.1 if None.
        split: what is held out, if not the test part: one of `SPLITS`, see `split_rows`.
    """
    data = data_set(data) if isinstance(data, str) else data
    _check_split(data, split, seed)
    made = (
        usual_model(data, temperature)
        if model is None
        else make_model(model, temperature, **_own_inputs(model, data))
    )
    if made.input_dim != data.num_columns:
        raise UsageError(f"the model has {made.input_dim} inputs; {data.name} has {data.num_columns} columns")
    if made.likelihood.event_shape != data.y.shape[1:]:
        shapes = made.likelihood.event_shape, data.y.shape[1:]
        raise UsageError(f"the model's labels have shape {shapes[0]}; those of {data.name} have {shapes[1]}")
    if made.num_classes != data.num_classes:
        of = [f"{one} classes" if one else "numbers" for one in (made.num_classes, data.num_classes)]
        raise UsageError(f"the model's labels are {of[0]}; those of {data.name} are {of[1]}")
    most = len(split_rows(data, seed, split).train)
    number = most if num_train is None else num_train
    check_whole("num_train", number, least=1)
    if number > most:
        raise UsageError(f"{data.name} has {most} training data; {number} are asked for")
    return DataProblem(made, number, seed, data, split)


def _check_split(data: DataSet, split: str, seed: int) -> None:
    """Raise a UsageError unless there is such a split of a set."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    check_whole("seed", seed, least=0)
    if split not in (GAL, VALIDATION[GAL]):
        return
    if data.x_test is not None:
        raise UsageError(f"split {split} is of one set of rows; {data.name} has a test part already")
    published = FEWER_SPLITS.get(data.name, NUM_SPLITS)
    if seed >= published:
        raise UsageError(
            f"{published} splits of {data.name} are published; expected a seed below that, not {seed}"
        )


def _own_inputs(model: Any, data: DataSet) -> dict[str, Any]:
    """The inputs of a program on data: those of the data."""
    if isinstance(model, OwnModel) or kind_of(model):
        return {}
    if isinstance(model, str) and model in MODELS:
        raise UsageError(f"the model of data is a program, as my_model.py:MODEL, and not {model!r}")
    return {"x": standardised(data.x, *moments(data.x))}


_NAME = re.compile(
    r"(?P<data>\w+)(?:\+(?P<model>[\w-]+)(?:\+(?P<setting>[\w.-]+))?)?"
    r"/T(?P<num_train>\d+|all)(?:-(?P<split>gal|(?:gal-)?validation))?-s(?P<seed>\d+)"
)


def of_name(name: str) -> DataProblem | None:
    """The problem of a name, if it is one of a named set, with a model of the package."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None or match["data"] not in SETS:
        return None
    number = None if match["num_train"] == "all" else int(match["num_train"])
    model = None
    if match["model"]:  # in the words of a problem whose truth it is
        words = "-".join(["T1", *filter(None, [match["setting"]]), "s0"])
        model = synthetic.of_name(f"{match['model']}/{words}").model
    split = match["split"] or STANDARD
    return of_data(match["data"], num_train=number, seed=int(match["seed"]), model=model, split=split)
