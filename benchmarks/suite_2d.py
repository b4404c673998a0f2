"""The whole of `2d`: wall time and memory of fresh processes, against the published implementation.

The published implementation needs, per problem on a machine of this kind, fit + score:
mlp 0.6 + 1.5 s, ensemble 4.8 + 3, ensemble+ 5.8 + 4.5, dropout 0.7 + 3.9, bbb 1.8 + 71, hypermodel
3.1 + 5.2, sgmcmc 224 + 14; it does every problem twice, once per tau.

    python benchmarks/suite_2d.py [--warm] [mlp dropout bbb hypermodel ensemble+ knn ...] [mlp-grid]

`mlp-grid` is a grid of 14 weight decays; --warm leaves out the run with a cold compilation cache.
"""

import os
import sys
import tempfile

from measure import COMMAND, measured

PUBLISHED = {
    "mlp": 2 * (0.6 + 1.5),
    "ensemble": 2 * (4.8 + 3.0),
    "ensemble+": 2 * (5.8 + 4.5),
    "dropout": 2 * (0.7 + 3.9),
    "bbb": 2 * (1.8 + 71),
    "hypermodel": 2 * (3.1 + 5.2),
    "sgmcmc": 2 * (224 + 14),
    "mlp-grid": 14 * 2 * (0.6 + 1.5),
}
GRID = """
import sys, pp_testbed as pt
decays = [10.0**power for power in range(-4, 3)]
grid = [pt.method("mlp", l2=l2, adaptive_l2=adaptive) for l2 in decays for adaptive in (True, False)]
frame = pt.run("2d", grid, sys.argv[1], jobs=2)
assert (frame.status == "ok").all() and len(frame) == 14 * 210
"""


def main() -> None:
    """Print one line per method, with a cold and a warm compilation cache."""
    print("method         cache  wall [s]  peak [MiB]  times faster than published")
    caches = ["user's"] if "--warm" in sys.argv else ["cold", "warm"]
    for method in [name for name in sys.argv[1:] if name != "--warm"] or ["mlp", "ensemble"]:
        with tempfile.TemporaryDirectory() as directory:
            own = {} if "--warm" in sys.argv else {"XDG_CACHE_HOME": directory}
            for cache in caches:
                out = f"{directory}/{cache}"
                command = [*COMMAND, "run", "--suite", "2d", "--methods", method, "--out", out]
                if method == "mlp-grid":
                    command = [sys.executable, "-c", GRID, out]
                seconds, peak = measured(command, {**os.environ, **own})
                ratio = 210 * PUBLISHED.get(method, float("nan")) / seconds
                print(f"{method:<14} {cache:<6} {seconds:8.1f}  {peak:10.0f}  {ratio:9.1f}", flush=True)


if __name__ == "__main__":
    main()
