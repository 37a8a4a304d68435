"""
Shadow memory: who touched each byte last.

Beside every byte of memory that commands touch, of scopes and off chip, lies the number of a state: the command that
wrote it last, and those that have read it since. Commands that are certain to have ended before another reader starts
are left out of the readers, as what comes after that one comes after them. Elements are counted in the largest
unit of bytes that every access is a multiple of.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

from penstock.dialects.weights import Array
from penstock.runtime.interpreter.commands import Touch
from penstock.runtime.interpreter.scopes import Buffer, array_of

NO_WRITER = -1

State = tuple[int, frozenset[int]]
"""The access that wrote last, `NO_WRITER` for none, and those that have read since."""


class _Piece:
    """The shadow of one piece of memory."""

    def __init__(self, owner: object, first: int, end: int, unit: int):
        self.owner = owner
        """Kept, so that no other memory takes its address."""
        self._first, self._unit = first, unit
        self._states: Array = np.zeros(-(-(end - first) // unit), np.int32)

    def view(self, part: Array) -> Array:
        """The numbers of the states of an array's elements: its shape and, where an element has several, one dim."""
        first: int = part.__array_interface__["data"][0]
        last = first + sum((size - 1) * stride for size, stride in zip(part.shape, part.strides, strict=True))
        self._cover(first, last + part.itemsize)
        unit = gcd(self._unit, part.itemsize, first - self._first, *part.strides)
        if unit < self._unit:
            self._states = np.repeat(self._states, self._unit // unit)
            self._unit = unit
        each, start = part.itemsize // unit, (first - self._first) // unit
        if part.flags.c_contiguous:
            shape = part.shape if each == 1 else (*part.shape, each)
            return self._states[start : start + part.size * each].reshape(shape)
        size = self._states.itemsize
        strides = [stride // unit * size for stride in part.strides]
        if each == 1:
            return as_strided(self._states[start:], part.shape, strides)
        return as_strided(self._states[start:], (*part.shape, each), [*strides, size])

    def _cover(self, first: int, end: int) -> None:
        """Grow, if memory that several arrays share is larger than was known."""
        before = max(0, -(-(self._first - first) // self._unit))
        after = max(0, -(-(end - self._first) // self._unit) - len(self._states))
        if before or after:
            self._states = np.pad(self._states, (before, after))
            self._first -= before * self._unit


class Shadow:
    """The states of all bytes that are touched, since all were last forgotten."""

    def __init__(self) -> None:
        self._pieces: dict[int, _Piece] = {}
        self._clean = 0
        """States with a number up to this one are older than the last barrier: the byte has not been accessed since."""
        self._known: list[State] = [(NO_WRITER, frozenset())]

    def forget(self) -> None:
        """No access yet."""
        self._clean += len(self._known)
        self._known = [(NO_WRITER, frozenset())]

    def visit(self, touch: Touch, follow: Callable[[State], State], *, one_state: bool) -> None:
        """Let `follow` say what becomes of every state; with `one_state` it is the same for all."""
        part = array_of(touch.memref) if isinstance(touch.region, np.ndarray) else touch.part()
        if part.size == 0:
            return
        view = self._piece(touch, part).view(part)
        old: Array = view[touch.region] if isinstance(touch.region, np.ndarray) else view
        if old.size == 0:
            return
        numbers: Array = np.array([old.flat[0]]) if (old == old.flat[0]).all() else np.unique(old)
        new = [follow(self._known[max(int(number) - self._clean, 0)]) for number in numbers]
        fresh: Any
        if one_state or len(numbers) == 1:
            fresh = self._add(new[0])
        else:
            fresh = np.array([self._add(state) for state in new], np.int32)[np.searchsorted(numbers, old)]
        if isinstance(touch.region, np.ndarray):
            view[touch.region] = fresh
        else:
            view[...] = fresh

    def _add(self, state: State) -> int:
        self._known.append(state)
        return self._clean + len(self._known) - 1

    def _piece(self, touch: Touch, part: Array) -> _Piece:
        owner = _memory_of(touch)
        key = id(owner)
        piece = self._pieces.get(key)
        if piece is None:
            whole, unit = part, part.itemsize
            if type(touch.memref) is Buffer:
                whole, unit = touch.memref.scope.data, touch.memref.scope.unit
            elif isinstance(owner, np.ndarray):
                whole = cast("Array", owner)
            first: int = whole.__array_interface__["data"][0]
            strides = zip(whole.shape, whole.strides, strict=True)
            end = first + sum((size - 1) * stride for size, stride in strides) + whole.itemsize
            piece = self._pieces[key] = _Piece(whole, first, end, unit)
        return piece


def _memory_of(touch: Touch) -> object:
    """The piece of memory that holds the elements; different pieces do not overlap."""
    if type(touch.memref) is Buffer:
        return touch.memref.scope
    base: Any = touch.memref
    while getattr(base, "base", None) is not None:
        base = base.base
    return base
