"""Any NumPyro program as a generative model: a user's own, from a file or a notebook.

A program `(x, y=None)` has latent sites, of any support, and observes labels at a site named y; what its
outputs are follows from the distribution of y (see `likelihoods`). `own_model` looks at all of that once, and
says what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from pp_testbed.engine.identity import config_hash, describe
from pp_testbed.errors import UsageError, check_whole
from pp_testbed.models.base import Array, Program, check_inputs, is_latent
from pp_testbed.models.likelihoods import Likelihood, outputs_of
from pp_testbed.models.user_files import FileObject

DIGITS = 8  # of a program's digest in its name


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class OwnModel:
    """A user's NumPyro program as a model of the testbed.

    Attributes:
        domain: inputs are rows of it [N, d], drawn with replacement; if None they are those of the program's
            own `inputs(key, num)` or, where it has none, N(0, I_d).
        program: `(x, y=None)`.
        family: its part of a problem's name: what it is called, and a digest of what it does.
        input_dim: d.
        num_classes: K, or 0 of labels that are numbers.
        likelihood: what its outputs mean.
        file: where it is from, if it is from a file.
    """

    revision: ClassVar[int] = 2
    temperature: ClassVar[float] = 1.0
    settings: ClassVar[tuple[str, ...]] = ()
    domain: Array | None
    program: Program = field(metadata={"static": True})
    family: str = field(metadata={"static": True})
    input_dim: int = field(metadata={"static": True})
    num_classes: int = field(metadata={"static": True})
    likelihood: Likelihood = field(metadata={"static": True})
    file: FileObject | None = field(metadata={"static": True})

    def __call__(self, x: Array, y: Array | None = None, num_train: Any = None) -> Array:
        # Its own deterministic sites stay inside: what it outputs is for the distribution of y to say.
        with handlers.block(hide_fn=lambda site: site["type"] == "deterministic"), handlers.trace() as sites:
            self.program(x, y)
        return sites["y"]["value"]

    @property
    def network(self) -> Any:
        """The network that agents train on its tasks, if the program says one."""
        said = getattr(self.program, "network", None)
        return said if hasattr(said, "apply") else None

    def inputs(self, key: Array, num: int) -> Array:
        """Draw inputs [num, d]."""
        if self.domain is not None:
            return self.domain[jax.random.randint(key, (num,), 0, len(self.domain))]
        return _own_inputs(self.program, self.input_dim)(key, num)

    def __reduce__(self) -> tuple[Any, ...]:
        domain = None if self.domain is None else np.asarray(self.domain)
        return _again, (self.family, self.file or self.program, self.input_dim, domain)


def _own_inputs(program: Program, input_dim: int) -> Callable[[Array, int], Array]:
    return getattr(program, "inputs", None) or (lambda key, num: jax.random.normal(key, (num, input_dim)))


_MADE: dict[str, OwnModel] = {}  # by family, so that a program which comes twice is compiled once


def _again(family: str, made_of: Any, input_dim: int, domain: Any) -> OwnModel:
    """A model that has travelled: the one that is here already, or made again, if it is still the same."""
    if family not in _MADE:
        made = own_model(made_of, input_dim=input_dim, x=domain)
        if _digest_in(made.family) != _digest_in(family):
            raise UsageError(f"what {family} does has changed since the problem was made: make it again")
        _MADE[family] = replace(made, family=family)
    return _MADE[family]


def _digest_in(family: str) -> str:
    return family.rpartition("@")[2][:DIGITS]


def own_model(
    made_of: Program | FileObject | str, *, input_dim: int | None = None, x: Any = None
) -> OwnModel:
    """A user's program as a model, checked.

    Args:
        made_of: the program `(x, y=None)`, or `file.py:NAME` where it is.
        input_dim: d; if None, that of `x` or of the program's own `input_dim` or `inputs`.
        x: inputs [N, d] of which problems draw theirs; else they are the program's `inputs(key, num)`, or
            standard normal.
    """
    file = FileObject.parse(made_of) if isinstance(made_of, str) else made_of
    if isinstance(file, FileObject):
        file = file.with_source()  # as it is now: it may be edited before it travels
    program: Any = file.load() if isinstance(file, FileObject) else file
    if not callable(program) or isinstance(program, type):
        raise UsageError(f"the model is {made_of!r}; expected a NumPyro program (x, y=None), or file.py:NAME")
    name = file.text if isinstance(file, FileObject) else getattr(program, "__name__", type(program).__name__)
    domain = None if x is None else _domain(x)
    dim = _dim_of(program, name, input_dim, domain)
    described = json.dumps(describe([program, None if x is None else np.asarray(domain)]))
    words = [f"{name.rpartition('/')[2]}@{config_hash(described)[:DIGITS]}"]
    family = "-".join([*words, *[f"{dim}d"] * (input_dim is not None)])
    found = inspected(program, name, dim)
    kept = file if isinstance(file, FileObject) else None
    return OwnModel(domain, program, family, dim, found.num_classes, found.likelihood, kept)


def _domain(x: Any) -> Array:
    """Inputs [N, d] of which a problem draws its own."""
    try:
        rows = jnp.asarray(x, dtype=jnp.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(f"x is no array of numbers: {error}") from None
    if rows.ndim != 2 or len(rows) == 0:
        raise UsageError(f"x has shape {rows.shape}; expected [N, d], at least one row")
    check_inputs(rows)
    return rows


def _dim_of(program: Any, name: str, input_dim: int | None, domain: Array | None) -> int:
    """How many inputs a program has."""
    drawn = None if domain is None else domain.shape
    if drawn is None and hasattr(program, "inputs"):
        drawn = jnp.shape(program.inputs(jax.random.key(0), 2))
        if len(drawn) != 2 or drawn[0] != 2:
            raise UsageError(f"{name}.inputs(key, 2) has shape {drawn}; expected [2, d]")
    if input_dim is None and domain is None:
        input_dim = getattr(program, "input_dim", None)
    if input_dim is None and drawn is not None:
        input_dim = drawn[1]
    if input_dim is None:
        hint = f"input_dim=2, --input-dim 2, or {name.rpartition(':')[2]}.input_dim = 2"
        raise UsageError(f"{name} does not say how many inputs it has: say it, as {hint}")
    check_whole("input_dim", input_dim, least=1)
    if drawn is not None and drawn[1] != input_dim:
        raise UsageError(f"{name} is said to have {input_dim} inputs; those that it draws have {drawn[1]}")
    return int(input_dim)


class Inspected(NamedTuple):
    """What a program shows of itself when it is run without values."""

    num_classes: int
    likelihood: Likelihood


def inspected(program: Program, name: str, input_dim: int) -> Inspected:
    """The likelihood of a program; or a UsageError if it is no model of labels y given inputs x."""
    two, three = (_sites(program, name, rows, input_dim) for rows in (2, 3))
    observed = [site["name"] for site in two.values() if site["is_observed"]]
    if "y" not in two:
        there = f"observes {', '.join(observed)}" if observed else "observes nothing"
        raise UsageError(f"{name} {there}; expected its labels at a site y: numpyro.sample('y', ..., obs=y)")
    if two.keys() != three.keys():
        other = sorted(two.keys() ^ three.keys())[0]
        raise UsageError(
            f"{name} has a site {other} or not, by how many inputs there are; expected sites that do not "
            "depend on x, and latents of rows in none"
        )
    for site in two.values():
        if site["is_param"]:
            raise UsageError(f"{name} has a parameter {site['name']}: give it a prior, with numpyro.sample")
        shapes = site["shape"], three[site["name"]]["shape"]
        if site["is_latent"] and site["is_discrete"]:
            raise UsageError(f"the latent site {site['name']} of {name} is discrete: sum it out")
        if site["is_latent"] and shapes[0] != shapes[1]:
            raise UsageError(
                f"the latent site {site['name']} of {name} has a value for every row of data, and "
                "none at other inputs; expected latents whose shape does not depend on x"
            )
    likelihood = two["y"]["likelihood"]
    if two["y"]["batch_shape"] != (2,) or two["y"]["shape"] != (2, *likelihood.event_shape):
        raise UsageError(
            f"y of {name} has shape {two['y']['shape']}, its batch {two['y']['batch_shape']}, for 2 inputs; "
            "expected (2,) of both, a plate; or (2, targets) in a plate of 2, and .to_event(1)"
        )
    said = getattr(program, "likelihood", likelihood)
    if hasattr(said, "event_shape") and said != likelihood:
        if said.event_shape != likelihood.event_shape or type(said) is not type(likelihood):
            raise UsageError(f"{name} says that its likelihood is {said}; its y is {likelihood}")
        likelihood = said
    return Inspected(two["y"]["num_outputs"] if likelihood.is_of_classes else 0, likelihood)


def _sites(program: Program, name: str, rows: int, input_dim: int) -> dict[str, Any]:
    """What is known of the sites of a program without running it on values."""
    found: dict[str, Any] = {}

    def run(x: Array, y: Array, key: Array) -> None:
        free = handlers.trace(handlers.seed(program, key)).get_trace(x)
        given = handlers.trace(handlers.seed(program, key)).get_trace(x, y)
        for site in free.values():
            if site["type"] == "param":
                found[site["name"]] = {"name": site["name"], "is_param": True, "is_observed": False}
            if site["type"] != "sample":
                continue
            fn = site["fn"]
            about = {"name": site["name"], "shape": jnp.shape(site["value"]), "is_discrete": fn.is_discrete}
            about |= {"is_param": False, "batch_shape": fn.batch_shape}
            about["is_observed"] = given.get(site["name"], site)["is_observed"]
            about["is_latent"] = is_latent(site) and not about["is_observed"]
            if site["name"] == "y":
                about["likelihood"], outputs = outputs_of(fn)
                about["num_outputs"] = outputs.shape[-1]
            found[site["name"]] = about

    shape = jax.ShapeDtypeStruct((rows, input_dim), jnp.float32)
    try:
        jax.eval_shape(run, shape, jax.ShapeDtypeStruct((rows,), jnp.int32), jax.random.key(0))
    except UsageError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{name} cannot be run on inputs [{rows}, {input_dim}]: {first}") from error
    return found
