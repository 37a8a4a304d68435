"""The text of the schedules of a program: reading what is given, and writing what has been applied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.transform import NamedSequenceOp, YieldOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError, location_of
from penstock.lowering.from_text import parse_text, read_text
from penstock.lowering.to_text import module_text
from penstock.runtime.pass_manager import verify

WITH_SEQUENCES = "transform.with_named_sequence"
"""The attribute that MLIR wants of a module with named sequences."""


def read_schedules(path: str | Path) -> dict[str, NamedSequenceOp]:
    """
    The schedules in a file, by the names of their kernels.

    Raises UserError for text that does not parse or verify, and for what is no schedule.
    """
    parsed = parse_text(make_context(), read_text(path))
    verify(parsed.module, parsed)
    found: dict[str, NamedSequenceOp] = {}
    for op in parsed.module.ops:
        if not isinstance(op, NamedSequenceOp):
            raise UserError(
                f"a file of schedules holds named sequences, not {op.name}",
                loc=location_of(op),
                notes=["transform.named_sequence @KERNEL(%kernel: !transform.any_op {transform.readonly}) { ... }"],
            )
        if found.setdefault(op.sym_name.data, op) is not op:
            raise UserError(f"kernel @{op.sym_name.data} has two schedules", loc=location_of(op))
    return found


def schedules_text(ctx: PenstockContext, schedules: Mapping[str, NamedSequenceOp]) -> str:
    """Schedules as a file that `read_schedules` reads."""
    sequences = [sequence.clone() for sequence in schedules.values()]
    for sequence in sequences:
        if not isinstance(sequence.body.block.last_op, YieldOp):
            sequence.body.block.add_op(YieldOp())
    return module_text(ctx, ModuleOp(sequences, {WITH_SEQUENCES: UnitAttr()}))
