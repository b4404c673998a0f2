"""Scores of posteriors against the truth."""
