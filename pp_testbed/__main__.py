"""`python -m pp_testbed` is `pp-testbed`."""

from pp_testbed.cli import main

main()
