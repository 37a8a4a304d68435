"""The inner loop of the planner `exact`, in C: built on first use, and the same as `PythonKernel` step by step."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.instance import Numbers
from penstock.passes.planning.search.state import Fit, Rule, Start, Verdict
from penstock.passes.toolchain.library import build_library, load

_MORE_ROOM = 3
_FRAME_FIELDS = 8

_NUMBERS = frozenset(
    "pieces sections switches rule fit tick dirty_count trail_count trail_room trail_step frame_count frame_room "
    "choice_count choice_room phase at until table_mask steps nodes fails known lifted".split()
)
"""The fields of `struct search` that are numbers; the others are pointers."""

_FIELDS = (
    "pieces sections switches size section_start section member_start member near_start near range_start range align "
    "shift tie twin single hull_end ceiling key_low key_top key_piece key_pinned rule fit rank by_rank low top placed "
    "pinned floor total left weight sum mark dirty tick dirty_count trail trail_count trail_room trail_step frame "
    "frame_count frame_room choice choice_count choice_room phase at until frame_key table table_mask steps nodes "
    "fails known lifted"
).split()
"""The fields in their order in C."""


class _Search(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64 if name in _NUMBERS else ctypes.c_void_p) for name in _FIELDS]


@cache
def _library() -> ctypes.CDLL | None:
    folder = files("penstock.passes.planning.search")
    try:
        library = load(
            build_library(
                "planning-search",
                {"search.c": folder.joinpath("search.c").read_text()},
                {"search.h": folder.joinpath("search.h").read_text()},
            )
        )
    except UserError:
        return None
    library.penstock_search.argtypes = [ctypes.POINTER(_Search), ctypes.c_int64, ctypes.c_int64]
    library.penstock_search.restype = ctypes.c_int
    return library


def available() -> bool:
    """Whether this machine has a C compiler, or the kernel from an earlier time when it had."""
    return _library() is not None


class CKernel:
    """One part of a problem at one height; `low` holds the places once the verdict is FOUND."""

    def __init__(self, start: Start, table_size: int):
        library = _library()
        assert library is not None, "ask `available` first"
        self._run = library.penstock_search
        self._start = start
        self._struct = _Search()
        self._arrays: dict[str, NDArray[Any]] = {}
        part = start.part
        pieces, sections = len(part.size), len(part.members)
        counts = np.bincount(_groups(part.tie), minlength=pieces)[_groups(part.tie)]
        self._set_numbers(
            pieces=pieces,
            sections=sections,
            switches=start.bits,
            table_mask=table_size - 1,
            trail_step=2 * int(counts.sum() + 3 * pieces + 3 * sections + 8),
        )
        spans = [span for each in start.ranges for span in each]
        self._set_arrays(
            size=part.size,
            section_start=part.sections.starts,
            section=part.sections.values,
            member_start=part.members.starts,
            member=part.members.values,
            near_start=part.near.starts,
            near=part.near.values,
            range_start=np.cumsum([0, *map(len, start.ranges)], dtype=np.int64),
            range=np.array(spans, np.int64).reshape(-1, 2),
            align=part.align,
            shift=part.shift,
            tie=part.tie,
            twin=part.twin,
            single=(part.tie == np.arange(pieces)).astype(np.int64),
            hull_end=start.hull_end,
            ceiling=start.ceiling,
            key_low=start.keys[0],
            key_top=start.keys[1],
            key_piece=start.keys[2],
            key_pinned=start.keys[3],
            mark=np.zeros(sections + pieces, np.int64),
            dirty=np.zeros(sections, np.int64),
            table=np.zeros(2 * table_size, np.uint64),
        )
        self._make_room()

    @property
    def steps(self) -> int:
        """Elementary steps taken in all."""
        return self._struct.steps

    @property
    def nodes(self) -> int:
        """Parts of the time axis entered in all."""
        return self._struct.nodes

    @property
    def fails(self) -> int:
        """Nodes of which every way failed."""
        return self._struct.fails

    @property
    def known(self) -> int:
        """Nodes that were known to fail."""
        return self._struct.known

    @property
    def lifted(self) -> int:
        """Lifts that left room for the rest."""
        return self._struct.lifted

    @property
    def low(self) -> list[int]:
        """[pieces] The lowest place of each piece, where it lies if it is placed."""
        return self._arrays["low"].tolist()

    def restart(self, rank: Numbers, rule: Rule, fit: Fit) -> None:
        """Begin anew, with another order among the pieces and other rules."""
        start = self._start
        zeros = np.zeros(len(rank), np.int64)
        self._set_arrays(
            rank=rank,
            by_rank=rank.argsort(),
            low=start.low.copy(),
            top=start.low.copy(),
            floor=start.floor.copy(),
            total=start.total.copy(),
            left=start.left.copy(),
            weight=np.ones(len(start.left), np.int64),
            sum=start.sums.copy(),
            placed=zeros,
            pinned=zeros.copy(),
        )
        self._set_numbers(rule=rule, fit=fit, trail_count=0, frame_count=0, choice_count=0, phase=0, at=0)
        self._set_numbers(until=len(start.left))

    def search(self, step_limit: int, node_limit: int) -> Verdict:
        """Go on until there is a verdict, or until as many steps or nodes were taken in all."""
        while (result := self._run(ctypes.byref(self._struct), step_limit, node_limit)) == _MORE_ROOM:
            self._make_room()
        return Verdict(result)

    def _set_numbers(self, **values: int) -> None:
        for name, value in values.items():
            setattr(self._struct, name, value)

    def _set_arrays(self, **arrays: NDArray[Any]) -> None:
        for name, array in arrays.items():
            kept = self._arrays[name] = np.ascontiguousarray(array)
            setattr(self._struct, name, kept.ctypes.data)

    def _make_room(self) -> None:
        """Twice the room for the path, or what a path of as many frames as pieces may take at first."""
        struct = self._struct
        frames = 2 * struct.frame_room or struct.pieces + 16
        choices = max(2 * struct.choice_room, 4 * struct.pieces)
        trail = max(2 * struct.trail_room, 16 * struct.trail_step)
        self._set_arrays(
            frame=_longer(self._arrays.get("frame"), frames * _FRAME_FIELDS, np.int64),
            frame_key=_longer(self._arrays.get("frame_key"), frames * 2, np.uint64),
            choice=_longer(self._arrays.get("choice"), choices, np.int64),
            trail=_longer(self._arrays.get("trail"), trail, np.int64),
        )
        self._set_numbers(frame_room=frames, choice_room=choices, trail_room=trail)


def _longer(array: NDArray[Any] | None, length: int, kind: type[np.generic]) -> NDArray[Any]:
    longer = np.zeros(length, kind)
    if array is not None:
        longer[: len(array)] = array
    return longer


def _groups(tie: Numbers) -> Numbers:
    """[pieces] The least of the pieces that each is tied to."""
    group = np.arange(len(tie), dtype=np.int64)
    for _ in range(len(tie)):
        least = np.minimum(group, group[tie])
        if np.array_equal(least, group):
            break
        group = least
    return group
