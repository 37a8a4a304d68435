"""Writes docs/reference from the docstrings of the code: `make docs`, or `python -m docs.generator`."""
