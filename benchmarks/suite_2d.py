"""The whole of `2d`: wall time and memory of fresh processes, against the published implementation.

The published implementation needs, per problem on a machine of this kind, fit + score:
mlp 0.6 + 1.5 s, ensemble 4.8 + 3 s, ensemble+ 5.8 + 4.5 s; it does every problem twice, once per tau.

    python benchmarks/suite_2d.py [mlp ensemble ensemble+]
"""

import os
import sys
import tempfile

from measure import measured

PUBLISHED = {"mlp": 2 * (0.6 + 1.5), "ensemble": 2 * (4.8 + 3.0), "ensemble+": 2 * (5.8 + 4.5)}


def main() -> None:
    """Print one line per method, with a cold and a warm compilation cache."""
    print("method      cache  wall [s]  peak [MiB]  times faster than published")
    for method in sys.argv[1:] or ["mlp", "ensemble"]:
        with tempfile.TemporaryDirectory() as directory:
            environment = {**os.environ, "XDG_CACHE_HOME": directory}
            for cache in ("cold", "warm"):
                out = f"{directory}/{cache}"
                seconds, peak = measured(
                    ["run", "--suite", "2d", "--methods", method, "--out", out], environment
                )
                ratio = 210 * PUBLISHED[method] / seconds
                print(f"{method:<11} {cache:<5} {seconds:9.1f}  {peak:10.0f}  {ratio:9.1f}", flush=True)


if __name__ == "__main__":
    main()
