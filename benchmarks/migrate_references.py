"""Give the shipped references the errors by draws that 0.1.0 did not keep; no score and no draw changes.

    pp-testbed reference build --suite 2d --max-num-train 100 --jobs 2 --store again/
    python benchmarks/migrate_references.py again/

An error by draws is a property of the procedure, not of one run: it is taken from chains of the same
settings, run again, as of the first ones neither the functions at the test inputs nor, on another machine,
the numbers can be had any more. The two builds also repeat one another: how far their scores are apart, in
units of the error that is claimed for the difference, is printed, and should be 1.
"""

import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from pp_testbed.evaluation.evaluator import Scores
from pp_testbed.evaluation.joint import jackknife
from pp_testbed.experiments import references
from pp_testbed.experiments.references import Reference

TABLE, SHIPPED = Path(str(references.TABLE)), Path(str(references.SHIPPED))
KLS = ("kl_marginal", "kl_joint", "kl_dyadic")


def errors(again: Reference) -> dict[str, float]:
    """The standard errors of a reference's scores."""
    return {name: value for name, value in asdict(again.scores).items() if name.endswith("_stderr")}


def distance(again: Reference, row: pd.Series, name: str) -> float:
    """How far the scores of two builds are apart, in standard errors by draws (their inputs are the same)."""
    deviations = again.deviations[name].astype(np.float64)
    variance = jackknife(deviations.reshape(len(deviations), -1).mean(axis=1))[1]
    return (getattr(again.scores, name) - float(row[name])) / np.sqrt(2.0 * float(variance))


def with_errors(path: Path, again: Reference) -> None:
    """Write a shipped reference anew: its own draws, values and scores, and the errors of the other build."""
    arrays = references._read_arrays(path)
    about = references._about(path)
    about["scores"] = asdict(replace(Scores(**about["scores"]), **errors(again)))
    arrays["about"] = np.array(references.json.dumps(about))
    arrays |= {f"deviations/{name}": leaf for name, leaf in again.deviations.items()}
    references._write_arrays(path, arrays)


def main(store: Path) -> None:
    """Migrate the table and the whole references."""
    table = pd.read_csv(TABLE, dtype=str)
    distances = {name: [] for name in KLS}
    for place, row in table.iterrows():
        name = f"{references.file_words(row.problem)}_{row.settings}.npz"
        again = references.load(store / name)
        for column, value in errors(again).items():
            table.loc[place, column] = f"{value:.7g}"
        for kl in KLS:
            distances[kl].append(distance(again, row, kl))
        if (SHIPPED / name).exists():
            with_errors(SHIPPED / name, again)
    table.to_csv(TABLE, index=False)
    for kl, found in distances.items():
        print(f"{kl}: two builds are {np.sqrt(np.mean(np.square(found))):.3f} of their claimed errors apart")
    size = sum(path.stat().st_size for path in SHIPPED.iterdir()) / 2**20
    print(f"{len(table)} references, {len(list(SHIPPED.iterdir()))} whole ones of {size:.1f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
