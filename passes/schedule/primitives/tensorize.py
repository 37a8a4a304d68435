"""Computing ops by an intrinsic of the machine."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.diagnostics import UserError, location_of, nearest_or_all
from penstock.dialects.machine import TargetOp
from penstock.dialects.schedule_memory import TensorizeOp
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(TensorizeOp)
def tensorize(state: TransformState, op: TensorizeOp) -> Sequence[Payload]:
    """
    Name the intrinsic that ops are, in their `library_call`; see `schedule.tensorize`.

    Raises UserError for an intrinsic that the machine lacks, and for an op that is not that one, with the index, the
    operand or the scope that differs.
    """
    if state.target is None:
        raise UserError("the kernel runs on the host, which has no intrinsics")
    name = op.intrinsic.string_value()
    if name not in (known := state.target.intrinsics()):
        raise UserError(
            f"@{state.target.sym_name.data} has no intrinsic @{name}", notes=[nearest_or_all(name, known, "intrinsics")]
        )
    targets: list[GenericOp] = []
    for each in state.payload(op.target):
        if not isinstance(each, GenericOp):
            raise UserError(f"what an intrinsic computes is a linalg.generic, not {each.name}", loc=location_of(each))
        match_named(each, name, state.target)
        targets.append(each)
    for each in targets:
        each.library_call = StringAttr(name)
    return ()


def match_named(generic: GenericOp, name: str, target: TargetOp) -> Match:
    """How `generic` is the intrinsic of that name, with its operands where they are; raises UserError if it is not."""
    access = access_of(generic)
    matches, failures = candidates(access, target) if access is not None else ([], [])
    for match in matches:
        if match.intrinsic.sym_name.data == name:
            return match
    reasons = [failure.reason for failure in failures if failure.intrinsic == name]
    raise UserError(
        f"this op is not @{name}: {', '.join(reasons) or 'it has several outputs, a dynamic domain, or its own index'}",
        loc=location_of(generic),
        notes=[f"it is @{match.intrinsic.sym_name.data}" for match in matches],
    )
