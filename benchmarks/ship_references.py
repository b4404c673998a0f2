"""Make what the package ships of the references: the table of all of `2d` with T <= 100, and a few whole.

    pp-testbed reference build --suite 2d --max-num-train 100 --jobs 2
    python benchmarks/ship_references.py

The first takes about half an hour on two cores (see `seconds` in the table), the second seconds. Shipped
references keep every value at the probes, so that `pp-testbed reference verify` works on them, but
only 100 draws of the parameters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

import pp_testbed as pt
from pp_testbed.studies import reference_files as references
from pp_testbed.studies.reference_files import settings_of

DRAWS = 100
WHOLE = [f"2d/T{t}-rho0.1-s0" for t in (1, 3, 10, 30, 100)] + ["2d/T10-rho0.01-s0", "2d/T10-rho0.5-s0"]
DATA = Path(pt.__file__).parent / "data"


def main() -> None:
    """Write the package's data."""
    problems = [problem for problem in pt.suite("2d") if problem.num_train <= 100]
    settings = settings_of(pt.method("nuts"))
    store, rows = references.default_store(), []
    (DATA / "references").mkdir(parents=True, exist_ok=True)
    for problem in problems:
        name = references.file_name(problem, settings)
        rows.append(references._row(references.read_about(store / name)))
        if problem.name in WHOLE:
            whole = references.load(store / name)
            step = len(next(iter(whole.draws.values()))) // DRAWS
            draws = {site: leaf[::step] for site, leaf in whole.draws.items()}
            slim = replace(whole, draws=draws, thinning=whole.thinning * step)
            (DATA / "references" / name).unlink(missing_ok=True)
            references.save(slim, DATA / "references" / name)
    table = pd.DataFrame(rows)
    converged = references.references(store).converged.sum()
    table.to_csv(DATA / "references.csv", index=False, float_format="%.7g")
    size = sum(path.stat().st_size for path in (DATA / "references").iterdir()) / 2**20
    seconds = table.seconds.sum()
    print(f"{len(table)} references, {converged} converged, {seconds:.0f} s of chains")
    print(f"{len(WHOLE)} whole ones, {size:.1f} MiB")


if __name__ == "__main__":
    main()
