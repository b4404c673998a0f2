"""What every method, family of models, evaluator and loop computes in a tiny cell, as a few numbers.

    python -m tests.fingerprints          # keeps those of today in tests/fingerprints.json

Run it after raising a `revision`: numbers of the same revision that have moved are refused. Cells of methods
are so small that nearly all of their time is compilation: their machine code is not optimised.
"""

import hashlib
import json
import os
import platform
import tempfile
from dataclasses import fields
from pathlib import Path
from unittest import mock

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")  # of slow tests, which compare them

import jax
import numpy as np

import pp_testbed as pt
from pp_testbed.engine.provenance import versions
from pp_testbed.inference.options import with_options
from pp_testbed.inference.registry import METHODS
from pp_testbed.studies.bandits import REVISION as ACTING
from pp_testbed.studies.calibration import REVISION as RANKING

FLAGS = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # of workers
FILE = Path(__file__).with_suffix(".json")
PROBLEM = pt.problem("2d/T10-rho0.1-s0")
QUICK = pt.Evaluation(num_batches=10, num_draws=20)
SMALL = {
    "num_steps": 20, "size": 2, "warmup": 20, "num_draws": 5, "thinning": 1, "burn_in": 5, "svi_steps": 20,
    "max_iterations": 5, "particles": 2, "paths": 2, "snapshots": 5, "sgd_steps": 2, "rank": 2,
    "num_cycles": 2, "draws_per_cycle": 2, "trees": 5, "num_leapfrog": 3, "max_depth": 3, "elbo_draws": 2,
}  # fmt: skip
FAMILIES = {
    "mlp": {},
    "mlp-10d-K3-h20-tanh-normal": {"input_dim": 10, "num_classes": 3, "hidden": (20,), "activation": "tanh",
                                   "init": "normal"},
    "logistic": {"model": "logistic", "input_dim": 5},
}  # fmt: skip


def small(name):
    """A registered method at a cost of seconds."""
    made = pt.method(name)
    known = {field.name for field in fields(made)}
    options = {option: value for option, value in SMALL.items() if option in known}
    if "burn_in" in known:
        options |= {"num_steps": 25, "burn_in": 5}
    return with_options(made, options)


def of_methods():
    """The scores of a tiny cell of each, run as the command line runs it: in workers."""
    made = {name: small(name) for name in METHODS}
    with mock.patch.dict(os.environ, FLAGS), tempfile.TemporaryDirectory() as folder:
        frame = pt.run([PROBLEM], list(made.values()), folder, jobs=2, progress=False, config=QUICK)
    rows = frame.set_index("method")
    assert (rows.status == "ok").all(), rows.error[rows.status != "ok"]
    scores = ["kl_marginal", "kl_joint", "kl_dyadic", "nll"]
    return {
        f"method {name}": (one.revision, rows.loc[name, scores].astype(float).tolist())
        for name, one in made.items()
    }


def of_family(name):
    """What a problem of a family is made of: inputs, labels, the truth."""
    problem = pt.problem(num_train=20, seed=1, **FAMILIES[name])
    truth = np.asarray(problem.environment.logits(problem.task.x))
    numbers = [truth.mean(), truth.std(), problem.task.x.std(), float(problem.task.y.sum())]
    return problem.revision, [float(number) for number in numbers]


def of_data():
    """How rows of a set are split, standardised and learnt from."""
    problem = pt.problem("iris/T100-s0")
    posterior = small("mlp").fit(problem.keys.fit, problem.task)
    nll = pt.evaluate(posterior, problem, key=problem.keys.evaluate, num_draws=5).nll
    numbers = problem.task.x.std(), problem.truth.y.sum(), nll
    return problem.revision, [round(float(number), 4) for number in numbers]  # the same on any processor


def of_evaluator():
    """All scores of three functions."""
    posterior = pt.finite(lambda x: np.stack([np.stack([0 * x[:, 0], k * x[:, 0]], -1) for k in (1, 2, -1)]))
    scores = pt.evaluate(posterior, PROBLEM, key=jax.random.key(1), config=QUICK)
    return pt.Evaluation.revision, list(scores.values.values())


def of_bandit():
    """A short run of an agent."""
    with tempfile.TemporaryDirectory() as folder:
        frame = pt.bandit([small("mlp")], steps=30, seeds=1, out=folder, jobs=1, progress=False)
    return ACTING, frame.regret.tolist()


def of_ranks():
    """Calibration of an ensemble's draws."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = pt.sbc(small("ensemble"), num_problems=20, out=folder, jobs=1, progress=False).ranks
    return RANKING, ranks.mean(axis=0).tolist()


def all_of_today():
    """Revisions and numbers, by what they are of."""
    families = {f"family {name}": of_family(name) for name in FAMILIES}
    rest = {"evaluator": of_evaluator(), "bandit": of_bandit(), "ranks": of_ranks(), "data": of_data()}
    return of_methods() | families | rest


def place():
    """What the last bits depend on: packages, how is compiled, and the kind of processor."""
    cpu = Path("/proc/cpuinfo")
    flags = (
        next((line for line in cpu.read_text().splitlines() if line.startswith("flags")), "")
        if cpu.exists()
        else ""
    )
    made_by = {name: version for name, version in versions().items() if name != "pp_testbed"}
    return (
        made_by
        | FLAGS
        | {"XLA_FLAGS of this process": os.environ["XLA_FLAGS"]}
        | {"processor": f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:8]}"}
    )


def main():
    """Keep the fingerprints of today; those of one revision do not change."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"place": {}, "values": {}}
    values = {}
    for name, (revision, numbers) in all_of_today().items():
        old = kept["values"].get(name)
        if old and kept["place"] == place() and old["revision"] == revision and old["numbers"] != numbers:
            raise SystemExit(f"{name}: its numbers have moved; raise its revision")
        values[name] = {"revision": revision, "numbers": numbers}
    FILE.write_text(json.dumps({"place": place(), "values": values}, indent=1) + "\n")
    print(len(values), "fingerprints kept")


if __name__ == "__main__":
    main()
