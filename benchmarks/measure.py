"""Running a command and measuring it: wall time and peak memory of it and all its descendants."""

import subprocess
import sys
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "pp_testbed"]


def descendants(pid: int) -> list[int]:
    """Process ids of a process and everything it started (Linux)."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in threads for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(one for child in children for one in descendants(child))]


def resident_mib(pid: int) -> float:
    """Resident memory of one process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command: seconds, and the peak of its total memory in MiB."""
    start, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        peak = max(peak, sum(resident_mib(pid) for pid in descendants(process.pid)))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - start, peak
