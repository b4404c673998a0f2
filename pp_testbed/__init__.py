"""pp_testbed judges posterior approximations of neural networks.

The public API, on one screen; each name is imported when it is first used, so that the command
line answers at once.

    suite("2d-lite"), problem(num_train=100)     what there is to be judged on
    method("ensemble+"), SVI(guide)              ways of approximating a posterior
    method.fit(key, problem.task)                a posterior: posterior.logits(key, x, num_draws)
    read_table("mine.csv", target="y")           one's own data: problem(data=...)
    ModuleNetwork(program, input_dim), MLP       networks that agents train: method("mlp", network=...)
    finite(f), sampled(f)                        a posterior from a plain Python function
    evaluate(posterior, problem, key=key)        its scores, with error bars
    reference(problem), references()             the exact posterior, by NUTS; the table of all
    compare(posterior, reference)                the distance to it
    diagnose(chains), posterior.to_arviz()       whether chains have converged; ArviZ
    sbc(method, num_train=10)                    simulation-based calibration
    run(suite, methods, out="results/")          all of it, as a data frame; executor=Dask(client)
    leaderboard(frame), write_report(frame)      a table; all of it as a page
    tune(method)                                 its hyperparameters
    bandit(methods), regrets(frame)              what posteriors are worth when they are acted on
    active(methods), learning(frame)             and when they choose their data
    correlations(bandits, frame)                 whether scores predict regret
    plots.agents(frame), plots.regret(bandits)   pictures; see pt.plots
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.6.0"

if TYPE_CHECKING:
    from pp_testbed.engine.dask import Dask as Dask
    from pp_testbed.errors import UsageError as UsageError
    from pp_testbed.evaluation.compare import Comparison as Comparison
    from pp_testbed.evaluation.compare import compare as compare
    from pp_testbed.evaluation.diagnostics import Diagnostics as Diagnostics
    from pp_testbed.evaluation.diagnostics import diagnose as diagnose
    from pp_testbed.evaluation.evaluator import evaluate as evaluate
    from pp_testbed.evaluation.latency import latency as latency
    from pp_testbed.evaluation.latency import load_predictor as load_predictor
    from pp_testbed.evaluation.latency import save_predictor as save_predictor
    from pp_testbed.evaluation.ranks import Calibration as Calibration
    from pp_testbed.evaluation.scores import Scores as Scores
    from pp_testbed.evaluation.terms import Evaluation as Evaluation
    from pp_testbed.inference.distilled import Distilled as Distilled
    from pp_testbed.inference.mcmc import NUTS as NUTS
    from pp_testbed.inference.posterior import Finite as Finite
    from pp_testbed.inference.posterior import Sampled as Sampled
    from pp_testbed.inference.posterior import finite as finite
    from pp_testbed.inference.posterior import sampled as sampled
    from pp_testbed.inference.registry import method as method
    from pp_testbed.inference.svi import SVI as SVI
    from pp_testbed.models.base import Environment as Environment
    from pp_testbed.models.base import Task as Task
    from pp_testbed.models.base import pytree_dataclass as pytree_dataclass
    from pp_testbed.models.base import task as task
    from pp_testbed.models.likelihoods import Normal as Normal
    from pp_testbed.models.logistic import LogisticRegression as LogisticRegression
    from pp_testbed.models.mlp import GenerativeMLP as GenerativeMLP
    from pp_testbed.models.networks import MLP as MLP
    from pp_testbed.models.networks import ModuleNetwork as ModuleNetwork
    from pp_testbed.problems.named import problem as problem
    from pp_testbed.problems.suites import Suite as Suite
    from pp_testbed.problems.suites import suite as suite
    from pp_testbed.problems.synthetic import Problem as Problem
    from pp_testbed.problems.tables import read_table as read_table
    from pp_testbed.report import plots as plots
    from pp_testbed.report.decisions import across_models as across_models
    from pp_testbed.report.decisions import correlations as correlations
    from pp_testbed.report.decisions import learning as learning
    from pp_testbed.report.decisions import regrets as regrets
    from pp_testbed.report.dimensions import advantage as advantage
    from pp_testbed.report.dimensions import by_dimension as by_dimension
    from pp_testbed.report.dimensions import transfer as transfer
    from pp_testbed.report.doubt import detection as detection
    from pp_testbed.report.leaderboard import leaderboard as leaderboard
    from pp_testbed.report.page import write_report as write_report
    from pp_testbed.studies.active import active as active
    from pp_testbed.studies.active import read_active as read_active
    from pp_testbed.studies.bandits import bandit as bandit
    from pp_testbed.studies.bandits import read_bandits as read_bandits
    from pp_testbed.studies.calibration import sbc as sbc
    from pp_testbed.studies.reference_files import Reference as Reference
    from pp_testbed.studies.reference_files import references as references
    from pp_testbed.studies.references import reference as reference
    from pp_testbed.studies.references import verify as verify
    from pp_testbed.studies.scoring import run as run
    from pp_testbed.studies.tune import Tuning as Tuning
    from pp_testbed.studies.tune import tune as tune

_HOME = {
    "Dask": "engine.dask",
    "UsageError": "errors",
    "evaluate": "evaluation.evaluator",
    "Evaluation": "evaluation.terms",
    **dict.fromkeys(["latency", "save_predictor", "load_predictor"], "evaluation.latency"),
    "Scores": "evaluation.scores",
    "Problem": "problems.synthetic",
    "problem": "problems.named",
    "read_table": "problems.tables",
    **dict.fromkeys(["Suite", "suite"], "problems.suites"),
    **dict.fromkeys(["Comparison", "compare"], "evaluation.compare"),
    **dict.fromkeys(["Diagnostics", "diagnose"], "evaluation.diagnostics"),
    **dict.fromkeys(["Reference", "references"], "studies.reference_files"),
    **dict.fromkeys(["reference", "verify"], "studies.references"),
    **dict.fromkeys(["active", "read_active"], "studies.active"),
    **dict.fromkeys(["bandit", "read_bandits"], "studies.bandits"),
    "run": "studies.scoring",
    "Calibration": "evaluation.ranks",
    "sbc": "studies.calibration",
    **dict.fromkeys(["Tuning", "tune"], "studies.tune"),
    **dict.fromkeys(["Finite", "Sampled", "finite", "sampled"], "inference.posterior"),
    "method": "inference.registry",
    "NUTS": "inference.mcmc",
    "Distilled": "inference.distilled",
    "SVI": "inference.svi",
    **dict.fromkeys(["Environment", "Task", "pytree_dataclass", "task"], "models.base"),
    "LogisticRegression": "models.logistic",
    "GenerativeMLP": "models.mlp",
    "Normal": "models.likelihoods",
    **dict.fromkeys(["MLP", "ModuleNetwork"], "models.networks"),
    "plots": "report.plots",
    **dict.fromkeys(["across_models", "correlations", "learning", "regrets"], "report.decisions"),
    **dict.fromkeys(["advantage", "by_dimension", "transfer"], "report.dimensions"),
    "detection": "report.doubt",
    "leaderboard": "report.leaderboard",
    "write_report": "report.page",
}
__all__ = [*_HOME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pp_testbed' has no attribute {name!r}")
    module = import_module(f"pp_testbed.{_HOME[name]}")
    value = getattr(module, name, module)  # `plots` is a module itself
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
