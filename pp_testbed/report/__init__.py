"""Tables from results."""
