# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference from the docstrings of the code: `make docs`, or `python -m docs.generator`."""
