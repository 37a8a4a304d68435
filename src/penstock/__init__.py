"""Penstock: a compiler framework for machines whose on-chip memories are managed by software."""

__version__ = "0.1.0"
