"""How time and memory grow with the number of problems: 10, 100 and 1000 of one shape.

python benchmarks/growth.py
"""

import subprocess
import sys

SCRIPT = """
import resource, sys, tempfile, time
import pp_testbed as pt
num = int(sys.argv[1])
problems = [pt.problem(num_train=100, temperature=0.1, seed=seed) for seed in range(num)]
with tempfile.TemporaryDirectory() as out:
    pt.run(problems[:10], ["mlp"], out, progress=False)  # compiles
    start = time.perf_counter()
    if num > 10:
        pt.run(problems, ["mlp"], out, progress=False)
    else:
        pt.run(problems, [pt.method("mlp", l2=2.0)], out, progress=False)
    seconds = time.perf_counter() - start
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> None:
    """Print one line per size, each measured in a fresh process."""
    print("problems  seconds  per problem [ms]  peak [MiB]")
    for num in (10, 100, 1000):
        command = [sys.executable, "-c", SCRIPT, str(num)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, peak = map(float, output.split())
        new = num if num == 10 else num - 10
        print(f"{num:8d}  {seconds:7.2f}  {1000 * seconds / new:16.1f}  {peak:10.0f}", flush=True)


if __name__ == "__main__":
    main()
