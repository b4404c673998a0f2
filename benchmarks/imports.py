"""How long a newcomer waits: imports, as ratios to those of NumPyro and BlackJAX, and `--help`.

python benchmarks/imports.py
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

REPEATS = 7
PYTHON = {
    "numpyro and blackjax": "import numpyro, blackjax",
    "pp_testbed": "import pp_testbed",
    "pp_testbed, and every public name": "import pp_testbed as p; [getattr(p, name) for name in p.__all__]",
}


def seconds(command: list[str]) -> float:
    """The median time of a process."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return median(times)


def main() -> None:
    """Print seconds and ratios."""
    measured = {what: seconds([sys.executable, "-c", code]) for what, code in PYTHON.items()}
    base = measured["numpyro and blackjax"]
    for what, value in measured.items():
        print(f"import {what}: {value:.2f} s, ratio {value / base:.2f}")
    script = Path(sys.executable).with_name("pp-testbed")
    print(f"pp-testbed --help: {seconds([str(script), '--help']):.2f} s")


if __name__ == "__main__":
    main()
