"""Generative models in NumPyro, environments and tasks."""
