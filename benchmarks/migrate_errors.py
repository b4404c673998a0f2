"""Give the kept results of posteriors that draw, and of chains, the errors by draws that 0.1.0 left out.

    python benchmarks/migrate_errors.py work/ [2d decisions decisions-acting activations widths]

Their cells are run again (resumable, an hour of one core). Where every score is the one that is kept, to the
bit, the kept row gets the new standard errors, and biases, which add up in another order and differ by some
1e-6. It keeps its seconds, which were measured on a machine that did nothing else. Rows whose scores have
changed are replaced whole, and counted. The configurations of `sgld` in bandits get the option `steady`,
which was a constant before.
"""

import json
import sys
from pathlib import Path

import pandas as pd
from ship_decisions import AGENTS, SHIPPED, specs

from pp_testbed.experiments.bandits import annealed
from pp_testbed.experiments.identity import config_hash
from pp_testbed.experiments.problems import problem
from pp_testbed.experiments.runner import run
from pp_testbed.experiments.specs import MethodSpec

PAPER = specs(AGENTS, offline=True)
FILES = {
    "2d": [MethodSpec(name) for name in ("dropout", "bbb", "hypermodel", "sgmcmc")],
    "decisions": PAPER,
    "decisions-acting": [annealed(spec.resolve(), 10) for spec in PAPER],
    "activations": PAPER[:6],
    "widths": PAPER[:6],
}
IDENTITY = ["problem", "method"]  # in these files a method has one configuration
NEW = ["config", "config_hash"]


def migrated(kept: pd.DataFrame, again: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Kept rows with the new errors, and how many have new numbers altogether."""
    kept, again = (frame.set_index(IDENTITY).sort_index() for frame in (kept, again))
    again = again.reindex(kept.index)
    assert (again.status == "ok").all()
    errors = [name for name in kept if name.endswith("_stderr")]
    scores = [name.removesuffix("_stderr") for name in errors]
    changed = [*errors, *(name for name in kept if name.endswith("_bias")), *NEW]
    same = (kept[scores] == again[scores]).all(axis=1)
    kept.loc[same, changed] = again.loc[same, changed]
    kept.loc[~same] = again.loc[~same]
    return kept.reset_index(), int((~same).sum())


def with_steady(text: str) -> str:
    """The configuration of an agent with the option that was a constant."""
    config = json.loads(text)
    if config["method"]["class"] == "pp_testbed.inference.sgmcmc.SGLD":
        config["method"].setdefault("steady", 1000.0)
    return json.dumps(config, sort_keys=True)


def migrate_bandits() -> None:
    """Give kept runs of bandits today's configurations."""
    for path in sorted(SHIPPED.glob("bandits*/*.parquet")):
        kept = pd.read_parquet(path)
        texts = {text: with_steady(text) for text in kept.config.unique()}
        if all(old == new for old, new in texts.items()):
            continue
        kept["config"] = kept.config.map(texts)
        kept["config_hash"] = kept.config.map({text: config_hash(text) for text in texts.values()})
        kept.to_parquet(path, index=False, compression="zstd")
        print(f"{path.name}: {sum(old != new for old, new in texts.items())} configurations", flush=True)


def main(work: Path, names: list[str]) -> None:
    """Run and migrate the files that are named."""
    migrate_bandits()
    for name in names or list(FILES):
        path = SHIPPED / f"{name}.parquet"
        kept = pd.read_parquet(path)
        drawn = kept.num_draws >= 400  # not the finite ones: their errors are over inputs alone, as they were
        methods = [m for m in FILES[name] if resolved_name(m) in set(kept[drawn].method)]
        again = run(map(problem, kept.problem.unique()), methods, work / name, jobs=2)
        rows, number = migrated(kept[drawn], again.assign(suite=kept.suite.iloc[0]))
        whole = pd.concat([kept[~drawn], rows[kept.columns]])
        order = ["method", "config_hash", "input_dim", "num_train", "temperature", "seed", "problem"]
        whole = whole.sort_values(order, ignore_index=True)
        whole.to_parquet(path, index=False, compression="zstd")
        print(f"{name}: {len(rows)} rows have new errors, {number} of them new numbers too", flush=True)


def resolved_name(item: object) -> str:
    """What a table calls a method."""
    return item.text if isinstance(item, MethodSpec) else item.name


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
