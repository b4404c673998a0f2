"""What there is to be judged on: tasks with their truths, and suites of them."""
