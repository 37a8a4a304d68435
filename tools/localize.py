"""Which operation computes another value after a faulty pass: the values of both programs, place by place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from penstock.dialects.diagnostics import render_location
from penstock.runtime.interpreter import Listener

Array = NDArray[Any]
Run = Callable[[ModuleOp, Listener], object]
"""Runs a module, telling a listener of every operation."""

Trace = dict[str, tuple[tuple[int, ...], str, bytes]]
"""Place of an operation -> shape, element type and digest of the first value that it computed."""


def first_difference(before: ModuleOp, after: ModuleOp, run: Run) -> str | None:
    """
    The place of the first operation, in the order of execution of `after`, whose value differs from that of the
    operation with the same location in `before`; values of another shape, such as tiles, are not compared.

    None where no such operation is found.
    """
    expected = _trace(before, run)
    for place, value in _trace(after, run).items():
        reference = expected.get(place)
        if reference is not None and reference[:2] == value[:2] and reference[2] != value[2]:
            return place
    return None


def _trace(module: ModuleOp, run: Run) -> Trace:
    trace: Trace = {}

    def listen(op: Operation, results: Sequence[Any]) -> None:
        # An empty tensor and a constant stand at the location of the op that they serve, and differ from nothing.
        if len(results) != 1 or not isinstance(results[0], np.ndarray) or not op.operands:
            return
        value = cast(Array, results[0])
        place = render_location(op.location)
        if place and place not in trace:
            digest = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()
            trace[place] = value.shape, value.dtype.name, digest

    run(module, listen)
    return trace
