"""Posterior approximations: one file per family, all behind `base`."""
