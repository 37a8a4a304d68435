# SPDX-License-Identifier: Apache-2.0
"""Parameters and choices that a tuner makes: knobs and alternatives."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.transform import YieldOp
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.transform_tune import AlternativesOp, KnobOp
from penstock.passes.schedule.state import PRIMITIVES, Result, TransformState


@PRIMITIVES.register(KnobOp)
def knob(state: TransformState, op: KnobOp) -> Sequence[int]:
    """
    The value that is selected for a parameter; raises UserError if none is, and if it is no integer.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformtuneknob
    """
    name, kernel = op.knob_name.data, state.kernel.sym_name.data
    if op.selected is None:
        raise UserError(
            f'knob "{name}" has no value',
            notes=[
                f'select one: --knob {kernel}.{name}=VALUE, or transform.tune.knob<"{name}"> = VALUE from options ...'
            ],
        )
    if not isa(op.selected, IntegerAttr):
        raise UserError(f"a parameter of a schedule is an integer, not {op.selected}")
    return (op.selected.value.data,)


@PRIMITIVES.register(AlternativesOp)
def alternatives(state: TransformState, op: AlternativesOp) -> Sequence[Result]:
    """
    The ops of the region that is selected, whose yielded handles are the results; raises UserError if none is.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformtunealternatives
    """
    name, kernel = op.choice_name.data, state.kernel.sym_name.data
    if op.selected_region_param is not None:
        number = state.parameter(op.selected_region_param)
    elif op.selected_region_attr is not None:
        number = op.selected_region_attr.value.data
    else:
        raise UserError(
            f'no region of alternatives "{name}" is selected',
            notes=[
                f"select one: --knob {kernel}.{name}=NUMBER",
                f'or write transform.tune.alternatives<"{name}"> selected_region = NUMBER',
            ],
        )
    if not 0 <= number < len(op.alternatives):
        raise UserError(f"there is no region {number}: there are {len(op.alternatives)}")
    block = op.alternatives[number].block
    with state.undone_on_error():
        for nested in block.ops:
            if not isinstance(nested, YieldOp):
                state.apply(nested)
    last = block.last_op
    return [state.result(value) for value in last.operands] if last is not None else []
