"""The C side of `ejection.py`: `ejection.c` built and loaded, and a problem laid out for it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.conflicts import FAR, Conflicts
from penstock.passes.toolchain.library import build_library, load

_PROBLEM = ("sizes", "first", "other", "low", "high", "alignments", "first_range", "range_start", "range_end")
_STATE = ("offsets", "weights", "outside", "best")
_SCALARS = ("goal", "left", "target", "height", "pace", "stale", "patience", "taken", "done")
_SCRATCH = ("by_start", "by_end", "start_ranks", "end_ranks", "entries", "lows", "low_weights", "highs", "high_weights")

Arrays = dict[str, NDArray[np.generic]]


def numbers(array: NDArray[np.generic]) -> list[int]:
    """An array of integers as a list."""
    return [*map(int, array.tolist())]


class Search(ctypes.Structure):
    """`Search` of ejection.c. It points into arrays that someone else has to keep."""

    left: int
    target: int
    height: int
    pace: int
    stale: int
    taken: int
    done: int
    random: int

    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (*_PROBLEM, *_STATE)),
        *((name, ctypes.c_int64) for name in _SCALARS),
        ("random", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in (*_SCRATCH, "marks")),
        ("placed", ctypes.c_int64),
    )


@cache
def load_library() -> ctypes.CDLL | None:
    """The loops in C; None where there is no C compiler."""
    try:
        library = load(
            build_library(
                "ejection", {"ejection.c": files("penstock.passes.planning").joinpath("ejection.c").read_text()}
            )
        )
    except UserError:
        return None
    library.penstock_first_fit.restype = ctypes.c_int64
    return library


def is_loaded() -> bool:
    """Whether `load_library` has been called, so that it costs nothing now."""
    return load_library.cache_info().currsize > 0


def pack(
    conflicts: Conflicts,
    offsets: Sequence[int],
    weights: Sequence[int],
    outside: Sequence[int],
    best: Sequence[int],
    **scalars: int,
) -> tuple[Search, Arrays]:
    """A problem and a state for C, and the arrays that hold them: what is read back is in these."""
    count = len(offsets)
    ranges = [place.ranges for place in conflicts.places]
    widest = int(np.diff(conflicts.first).max(initial=0))
    state = (offsets, weights, [*outside, *[0] * (count - len(outside))], best)
    arrays: Arrays = {
        "sizes": np.array(conflicts.sizes, np.int64),
        "first": np.ascontiguousarray(conflicts.first),
        "other": np.ascontiguousarray(conflicts.other),
        "low": np.ascontiguousarray(conflicts.low),
        "high": np.ascontiguousarray(conflicts.high),
        "alignments": np.array([place.step for place in conflicts.places], np.int64),
        "first_range": np.cumsum([0, *map(len, ranges)]),
        "range_start": np.array([start for each in ranges for start, _ in each], np.int64),
        "range_end": np.array([end for each in ranges for _, end in each], np.int64),
        **{name: np.array(values, np.int64) for name, values in zip(_STATE, state, strict=True)},
        **{name: np.empty(max(count, widest) + 1, np.int64) for name in _SCRATCH},
        "marks": np.empty(count // 64 + 1, np.uint64),
    }
    pointers = {name: array.ctypes.data for name, array in arrays.items()}
    return Search(count=count, left=len(outside), **scalars, **pointers), arrays


def first_fit_in_c(library: ctypes.CDLL, conflicts: Conflicts, order: Sequence[int]) -> list[int] | None:
    """First fit in an order: the offsets of all buffers, or None where one finds no place."""
    offsets = [-1 if buffer.offset is None else buffer.offset for buffer in conflicts.problem.buffers]
    search, arrays = pack(conflicts, offsets, [1] * len(offsets), (), offsets, height=FAR)
    turns = np.array(order, np.int64)
    if not library.penstock_first_fit(ctypes.byref(search), ctypes.c_void_p(turns.ctypes.data)):
        return None
    return numbers(arrays["offsets"])
