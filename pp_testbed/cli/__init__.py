"""The command line: `pp-testbed run | leaderboard | bandit | active | tune | compare | sbc | ...`.

Only arguments and output are here; what the commands do is the Python API. Heavy imports happen
inside the commands, so that `--help` answers at once. A new command is a function in one of these files.
"""

import os

# isort: off
from pp_testbed.cli.app import app
from pp_testbed.cli import scoring, decisions, tuning, exact, latency, data, lists  # noqa: F401  (they register commands)


def main() -> None:
    """The entry point of `pp-testbed`."""
    os.environ.setdefault("MPLBACKEND", "agg")  # pictures are files here, whatever the desktop is
    app()
