# SPDX-License-Identifier: Apache-2.0
"""The inner loops of the planners in C, `search.c` and `ejection.c`: built on first use, and their states."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.passes.toolchain import INSTALL, build_library, load

_SOURCES = ("search.c", "ejection.c")
_STATE, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS = {
    "penstock_search": (_STATE, _NUMBER, _NUMBER),
    "penstock_eject": (_STATE, _NUMBER),
    "penstock_restart": (_STATE,),
    "penstock_first_fit": (_STATE, ctypes.c_void_p),
}
"""The functions by name, with the types of their arguments; what they return is an `int`, or nothing."""


@cache
def _load() -> ctypes.CDLL | UserError:
    folder = files("penstock.passes.planning")
    try:
        library = load(build_library("planners", {file: folder.joinpath(file).read_text() for file in _SOURCES}))
    except UserError as error:
        return error
    for name, arguments in _FUNCTIONS.items():
        getattr(library, name).argtypes = arguments
    return library


def is_available() -> bool:
    """Whether there is a C compiler, or the library from an earlier time when there was."""
    return not isinstance(_load(), UserError)


def library_for(planner: str) -> ctypes.CDLL:
    """The library; raises UserError, which names the planner that cannot do without, where there is none."""
    found = _load()
    if isinstance(found, UserError):
        notes = [INSTALL, "the one-pass planners, hill-climb and portfolio do without one"]
        raise UserError(f'the planner "{planner}" runs in C: {found.message}', loc=found.loc, notes=notes)
    return found


@cache
def warn_without(planner: str, instead: str) -> None:
    """Say once on stderr what a planner does instead of its searches in C."""
    found = _load()
    assert isinstance(found, UserError)
    print(f"warning: the planner {planner} {instead}: {found.message}", file=sys.stderr)


class NativeState:
    """
    A struct in C of pointers, followed by numbers of 64 bits; the arrays that it points into are kept here.

    `state.struct.NAME` is a number of it, and `state.arrays["NAME"]` an array.
    """

    def __init__(self, pointers: str, numbers: str):
        """The names of the fields in their order in C."""
        fields = [(name, ctypes.c_void_p) for name in pointers.split()]
        fields += [(name, ctypes.c_int64) for name in numbers.split()]
        self.struct: Any = type("Struct", (ctypes.Structure,), {"_fields_": fields})()
        self.arrays: dict[str, NDArray[Any]] = {}

    @property
    def reference(self) -> Any:
        """The pointer to hand to C."""
        return ctypes.byref(self.struct)

    def set_arrays(self, **arrays: NDArray[Any]) -> None:
        """Point into these arrays, or into contiguous copies of them."""
        for name, array in arrays.items():
            kept = self.arrays[name] = np.ascontiguousarray(array)
            setattr(self.struct, name, kept.ctypes.data)

    def set_numbers(self, **numbers: int) -> None:
        """Set numbers; those without a sign wrap."""
        for name, number in numbers.items():
            setattr(self.struct, name, number)
