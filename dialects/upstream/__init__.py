"""
What xDSL 0.74 lacks of MLIR's own dialects and text, a file for each dialect or kind of attribute.

Importing this package amends xDSL's classes, since everything that reads and prints IR uses them: our parser, xDSL's
own driver, its targets, and `str` of any attribute. `AMENDED` has the dialects that are amended when they are loaded.
A file goes when xDSL does what it does.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Dialect

from penstock.dialects.upstream import dense, floats, integers, semi_affine, unregistered

__all__ = ["AMENDED", "dense", "floats", "integers", "semi_affine", "unregistered"]


def _affine() -> Dialect:
    from penstock.dialects.upstream.affine import affine_of_mlir

    return affine_of_mlir()


def _arith() -> Dialect:
    from penstock.dialects.upstream.arith import arith_with_remainder

    return arith_with_remainder()


def _func() -> Dialect:
    from xdsl.dialects.func import Func

    from penstock.dialects.upstream import func  # noqa: F401  # pyright: ignore[reportUnusedImport]

    return Func


def _linalg() -> Dialect:
    from xdsl.dialects.linalg import Linalg

    from penstock.dialects.upstream import linalg  # noqa: F401  # pyright: ignore[reportUnusedImport]

    return Linalg


AMENDED: dict[str, Callable[[], Dialect]] = {"affine": _affine, "arith": _arith, "func": _func, "linalg": _linalg}
"""Factories of the dialects of xDSL that have, or read, here what they lack."""
