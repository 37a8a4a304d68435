# SPDX-License-Identifier: Apache-2.0
"""Ops of a schedule, applied to a kernel that tests write as text."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.scf import ForOp
from xdsl.dialects.transform import NamedSequenceOp
from xdsl.ir import Operation

from penstock.dialects.context import PenstockContext
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.schedule import primitives  # noqa: F401  # pyright: ignore[reportUnusedImport]
from penstock.passes.schedule.state import TransformState

RESULTS = re.compile(r"^\s*(%[\w%, ]+) = ", re.MULTILINE)
NAME = re.compile(r"%(\w+)")


def apply_schedule(ctx: PenstockContext, module: ModuleOp, ops: str) -> None:
    """
    Apply ops of a schedule, written as the body of a sequence, to the only kernel of a module.

    `%kernel` is its handle; other names that are not results are those of loops, by their counters, and of ops, by
    their first results or, without any, by the op's name.
    """
    (kernel,) = (op for op in module.ops if isinstance(op, FuncOp))
    results = {name for listed in RESULTS.findall(ops) for name in NAME.findall(listed)}
    free = list(dict.fromkeys(name for name in NAME.findall(ops) if name not in results | {"kernel"}))
    arguments = ", ".join(f"%{name}: !transform.any_op" for name in ("kernel", *free))
    text = f"transform.named_sequence @k({arguments}) {{\n{ops}\ntransform.yield\n}}"
    (sequence,) = parse_text(ctx, SourceText("schedule", text)).module.ops
    assert isinstance(sequence, NamedSequenceOp)
    state = TransformState(kernel, machine_of(module))
    payloads: dict[str | None, Operation] = {"kernel": kernel}
    for op in kernel.walk():
        named = op.body.block.args[0] if isinstance(op, ForOp) else op.results[0] if op.results else None
        payloads.setdefault(op.name.rpartition(".")[2] if named is None else named.name_hint, op)
    for argument in sequence.body.block.args:
        state.bind(argument, (payloads[argument.name_hint],))
    for op in sequence.body.block.ops:
        if op is not sequence.body.block.last_op:
            state.apply(op)
