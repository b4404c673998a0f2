"""Problems and suites, the runner and the results store."""
