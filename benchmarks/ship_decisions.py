"""The regrets that the repository keeps, and the scores beside them: run, and packed; resumable.

    python benchmarks/ship_decisions.py work/ 2d 10d 50d acting nuts variety models
    python benchmarks/ship_decisions.py work/              # only pack what is there

The published agents (`--preset paper`), ensembles of 30, 20 seeds. The horizon is the paper's 50,000 steps,
for d = 2 some 30 minutes on two cores, for 10 40 and for 50 70; less for nuts.
Each part is a file in `kept/bandits/`; scores on suite `decisions`, and of the generative
models, are in `kept/`.
"""

import sys
from pathlib import Path

from pp_testbed.engine.store import Store
from pp_testbed.inference.online import in_dimensions
from pp_testbed.inference.specs import MethodSpec
from pp_testbed.problems.suites import suite
from pp_testbed.studies.bandits import PAPER_STEPS, bandit, read_bandits
from pp_testbed.studies.scoring import run

SHIPPED = Path(__file__).parent / "results"
SGLD = {"num_steps": "100000", "burn_in": "20000", "thinning": "200"}  # offline; online its chain goes on
PAPER = ("mlp", "dropout", "bbb", "hypermodel", "ensemble", "ensemble+")
AGENTS = [(name, {}) for name in (*PAPER, "epinet", "sgld")]
VARIETY = [  # more agents, at the short horizon: what a correlation over agents needs
    *[("mlp", {"l2": l2}) for l2 in ("0.1", "1", "10")],
    *[("dropout", {"rate": rate}) for rate in ("0.1", "0.3", "0.5")],
    *[("sgld", {"prior_variance": variance}) for variance in ("0.05", "0.1", "0.3")],
    *[("bbb", {"sigma": sigma}) for sigma in ("0.5", "1")],
    *[("epinet", {"prior_scale": scale}) for scale in ("0", "1", "3")],
    *[("hypermodel", {"prior_scale": scale}) for scale in ("0", "1")],
    *[("ensemble", {"size": size}) for size in ("3", "10", "30")],
    *[("ensemble+", {"size": "10", "prior_scale": scale}) for scale in ("0.3", "1", "3")],
    ("ensemble+", {"size": "30"}),
]
MODELS = [{"activation": word} for word in ("relu", "tanh", "sigmoid", "gelu")] + [
    {"hidden": (units, units)} for units in (5, 20, 100)
]


def specs(agents: list[tuple[str, dict[str, str]]], offline: bool = False) -> list[MethodSpec]:
    """Agents with their options; as methods that are scored, ensembles of 30 too."""
    made = []
    for name, options in agents:
        more = {}
        if offline and name.startswith("ensemble"):
            more = {"size": "30"}
        if offline and name == "sgld":
            more = SGLD
        made.append(MethodSpec(name, tuple({**more, **options}.items()), "paper"))
    return made


def play(part: str, work: Path) -> None:
    """Run one part."""
    bounds = [("uniform", {}), ("oracle", {}), ("prior", {})]
    if part in ("2d", "10d", "50d"):
        dim = int(part.removesuffix("d"))
        bandit(specs([*bounds, *AGENTS]), dim=dim, steps=PAPER_STEPS, out=work / part, jobs=2)
        run(suite("decisions").filter(input_dim=dim), specs(AGENTS, True), work / "decisions", jobs=2)
    elif part == "acting":  # scored with the prior that they act with in ten dimensions
        methods = [in_dimensions(spec.resolve(), 10) for spec in specs(AGENTS, True)]
        run(suite("decisions").filter(input_dim=10), methods, work / "decisions-acting", jobs=2)
    elif part == "nuts":
        bandit(specs([("nuts", {})]), dim=2, steps=5000, out=work / part, jobs=2)
    elif part == "variety":
        bandit(specs(VARIETY), dim=2, steps=5000, out=work / part, jobs=2)
        run(suite("decisions").filter(input_dim=2), specs(VARIETY, True), work / "decisions-variety", jobs=2)
    elif part == "models":
        for options in MODELS:
            bandit(specs(AGENTS[:6]), dim=2, steps=2000, out=work / part, jobs=2, **options)
        for name in ("activations", "widths"):
            run(suite(name), specs(AGENTS[:6], True), work / name, jobs=2)


def main() -> None:
    """Run the parts that are named, then pack all that is there."""
    work = Path(sys.argv[1])
    for part in sys.argv[2:]:
        play(part, work)
    for part in sorted(path.name for path in work.iterdir() if path.is_dir()):
        is_results = part.split("-")[0] in ("decisions", "activations", "widths")
        frame = Store(work / part).read() if is_results else read_bandits(work / part)
        # Sets of agents and of models are apart: a correlation is over one of them.
        home = "." if is_results else "bandits" if part[0].isdigit() else f"bandits-{part}"
        path = SHIPPED / home / f"{part}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path, index=False, compression="zstd")
        print(f"{path}: {len(frame)} rows, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
