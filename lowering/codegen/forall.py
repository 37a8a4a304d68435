# SPDX-License-Identifier: Apache-2.0
"""Parallel loops, `scf.forall`: a function that runs some of the iterations, which the threads of a context call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import BlockArgument
from xdsl.utils.hints import isa

from penstock.dialects.upstream.scf import ForallOp
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Expr, Size
from penstock.lowering.codegen.views import Captured, is_token, unsupported
from penstock.passes.analysis.loops import forall_iterations, threads_of
from penstock.passes.analysis.memory.storage import storage_of
from penstock.runtime.interpreter.body import captured_values


def emit_forall(emitter: Emitter, op: ForallOp) -> None:
    """A parallel loop: a function that runs some of its iterations, which the threads call."""
    bounds = forall_iterations(op)
    assert bounds is not None
    emitter.program.threads = max(emitter.program.threads, threads_of(op))
    kernel = emitter.program.symbols[emitter.symbol]
    name = emitter.program.names.hinted(f"{kernel}_loop{len(emitter.parts)}", ("_part", "_given"))
    part = emitter.part(name)
    captured = _captured(emitter, part, op)

    def iteration(number: Size) -> None:
        _declare_indices(part, op, bounds, number)
        part.emit_block(op.region.block)

    part.iterations(iteration)
    body = part.written()
    given = [each for each in captured if re.search(rf"{re.escape(each.name)}\b", body)]
    emitter.run_parallel(part, name, given, prod(trips for _, _, trips in bounds))


def _captured(emitter: Emitter, part: Emitter, op: ForallOp) -> list[Captured]:
    """What the iterations use from outside, bound in `part` to parameters."""
    values = [value for value in captured_values(op) if not is_token(value)]
    roots = [storage_of(value) for value in values if isa(value.type, MemRefType)]
    restricted = emitter.restricted_arguments()
    found: list[Captured] = []
    for value in values:
        known = emitter.values[value]
        if isinstance(known, Expr):
            part.values[value] = known
            if known.number is None and not isinstance(value.owner, arith.ConstantOp):
                name = part.name(value)
                found.append(Captured(value, name, known.text, None))
                part.values[value] = Expr(name, is_atom=True)
            continue
        if known.static_strides is None or not all(isinstance(size, int) for size in known.shape):
            message = "scf.forall uses a memref whose shape or strides are not known, so it has no threads in"
            raise unsupported(op, f"{message} {emitter.language.name}")
        name, root = part.name(value), storage_of(value)
        is_alone = isinstance(root, BlockArgument) and root.index in restricted and roots.count(root) == 1
        found.append(Captured(value, name, known.pointer, known, is_alone))
        base = name
        if known.base != known.pointer:
            base = part.new_name("v")
            found.append(Captured(value, base, known.base, known))
        part.values[value] = replace(known, pointer=name, base=base)
    return found


def _declare_indices(part: Emitter, op: ForallOp, bounds: Sequence[tuple[int, int, int]], number: Size) -> None:
    """The indices of an iteration, the last dim fastest."""
    inner = prod(trips for _, _, trips in bounds)
    for place, (index, (lower, step, trips)) in enumerate(zip(op.indices, bounds, strict=True)):
        inner //= max(trips, 1)
        digit = part.digit(number, inner, trips if place and trips > 1 else None)
        part.declare(index, Expr(str(part.sum_of([(digit, step)], lower) if trips > 1 else lower)))
