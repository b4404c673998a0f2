"""Kinds of question, each a file: which cells there are, and how some of them are run."""
