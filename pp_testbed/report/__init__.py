"""Tables from results."""

FORMATS = (
    "table",
    "csv",
    "markdown",
    "latex",
    "json",
)  # of tables
