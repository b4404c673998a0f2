"""`problem`: one problem, by its name or by what it is."""

from __future__ import annotations

import warnings
from typing import Any

from pp_testbed.errors import UsageError
from pp_testbed.problems import data as real
from pp_testbed.problems import synthetic
from pp_testbed.problems.base import BaseProblem
from pp_testbed.problems.rows import DataSet, notes_on_kind, own_set


def problem(
    name: str | None = None,
    *,
    num_train: int | None = None,
    temperature: float | None = None,
    seed: int = 0,
    model: Any = None,
    data: Any = None,
    test: Any = None,
    split: str = "",
    elsewhere: dict[str, Any] | None = None,
    costs: Any = None,
    **options: Any,
) -> Any:
    """One problem, by its name or by what it is: of a generative model, or of data.

    Args:
        name: such as `2d/T100-rho0.1-s3` or `iris/T100-s0`, which says all of it.
        num_train: T; 100, or all data, if None.
        temperature: rho of the network, 0.1 (0.01 for logistic) if None; programs have none.
        seed: of environment and data; of real data, of the split and their order.
        model: "mlp", "logistic", "regression" or "coins"; one that is made, such as
            `GenerativeMLP(hidden=(9,))`; a NumPyro program `(x, y=None)`; or `file.py:NAME`, where one is.
        data: `(x, y)`, a set of `pt.read_table`, or the name of one: the truth is then labels that are held
            out.
        test: `(x, y)` of a test part; if None a fifth of the rows is held out.
        split: what is held out, if not a fifth or the test part: "validation", a part of the training data;
            or "gal", the published splits of regression sets, whose number is the seed.
        elsewhere: inputs [N, d] of other sets by their names, which a method should doubt; of one's own data.
        costs: of a true class and of a decision [K, K], of one's own data.
        options: of the model, such as `input_dim=10, num_classes=3, hidden=(20, 20)`; of a program its
            `input_dim`, or inputs `x` of which problems draw theirs.

    Examples:
        >>> problem(num_train=100, temperature=0.1, seed=3) == problem("2d/T100-rho0.1-s3")
        True
    """
    if name is not None:
        besides = {"num_train": num_train, "temperature": temperature, "seed": seed or None, "model": model}
        besides |= {"data": data, "test": test, "split": split, "elsewhere": elsewhere, "costs": costs}
        _refuse(f"{name!r} says all of a problem", **besides, **options)
        return of_name(name)
    if data is None:
        _refuse("there is no data", test=test, split=split, elsewhere=elsewhere, costs=costs)
        number, kind = 100 if num_train is None else num_train, "mlp" if model is None else model
        return synthetic.of_model(kind, num_train=number, temperature=temperature, seed=seed, **options)
    if options:
        raise UsageError(f"a problem of data has no option {', '.join(options)}; expected a model that has")
    if not isinstance(data, DataSet | str):
        parts = (*_pair(data, "data"), *(() if test is None else _pair(test, "test")))
        data = own_set(*parts, elsewhere=elsewhere, costs=costs)
        for note in (*data.notes, *notes_on_kind(data)):
            warnings.warn(note, stacklevel=2)
    else:
        _refuse("a data set has the parts that it has", test=test, elsewhere=elsewhere, costs=costs)
    return real.of_data(
        data, num_train=num_train, seed=seed, model=model, temperature=temperature, split=split
    )


def _refuse(why: str, **given: Any) -> None:
    """Raise a UsageError if any of these arguments is given."""
    if said := [name for name, value in given.items() if not isinstance(value, str | None) or value]:
        raise UsageError(f"{why}; expected no {', '.join(said)} besides")


def _pair(given: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UsageError(f"{what} is {type(given).__name__}; expected inputs and labels, as {what}=(x, y)")
    return given[0], given[1]


def of_name(name: str) -> BaseProblem:
    """The problem of a name."""
    return real.of_name(name) or synthetic.of_name(name)
