"""One group of operators on operands that are stored in f16, computing in f32."""

from __future__ import annotations

import numpy as np
from xdsl.ir import Attribute, Block, Operation, SSAValue

from penstock.dialects.graph import (
    AttentionOp,
    CastOp,
    ConvOp,
    ExpandOp,
    FusedOp,
    GemmOp,
    IdentityOp,
    LayoutTransformOp,
    MatmulOp,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    YieldOp,
)
from penstock.passes.graph.storage.values import (
    HALF,
    SINGLE,
    StoredValues,
    Width,
    fits_half,
    is_single,
    with_elements,
)
from penstock.passes.graph.values import derived

CONTRACTIONS = (ConvOp, GemmOp, MatmulOp)
MOVES = (ExpandOp, IdentityOp, LayoutTransformOp, ReshapeOp, SliceOp, TransposeOp)
"""Ops that move elements and compute nothing: they do not care which type these have."""


def rebuilt(op: Operation, operands: list[SSAValue], element: Attribute, **properties: Attribute) -> Operation:
    """`op` on other operands, with a result of other elements."""
    new = type(op).create(
        operands=operands,
        result_types=[with_elements(op.results[0], element)],
        properties={**op.properties, **properties},
        attributes=op.attributes.copy(),
    )
    new.location = op.location
    new.results[0].name_hint = op.results[0].name_hint
    return new


def _is_half(number: float) -> bool:
    """Whether f16 holds a number."""
    with np.errstate(over="ignore"):
        return float(np.float16(number)) == number


class GroupInHalf:
    """A group under reconstruction, in which an f32 value may be there in f32, in f16 or in both."""

    def __init__(self, old: FusedOp, stored: StoredValues):
        self._old = old
        self._stored = stored
        self._body = Block()
        self._inputs: list[SSAValue] = []
        self._outside: dict[SSAValue, SSAValue] = dict(zip(old.body.block.args, old.inputs, strict=True))
        self._forms: dict[tuple[SSAValue, Attribute | None], SSAValue] = {}
        self._member: Operation = old

    def rebuild(self) -> FusedOp:
        """The group on its operands as they are stored, with its results as they shall be."""
        for op in self._old.body.block.ops:
            self._member = op
            if not isinstance(op, YieldOp):
                self._add(op)
                continue
            results = zip(op.values, self._old.outputs, strict=True)
            yielded = [self._form(value, self._width(value, self._stored.is_half(out))) for value, out in results]
            self._body.add_op(YieldOp(*yielded))
        group = FusedOp(self._inputs, self._body, pattern=self._old.pattern.data)
        group.location = self._old.location
        return group

    def _add(self, op: Operation) -> None:
        if isinstance(op, CONTRACTIONS) and self._is_narrowed(op):
            narrow = [self._form(factor, HALF) for factor in op.operands[:2]]
            addend = [self._form(value, SINGLE) for value in op.operands[2:]]
            self._define(op, rebuilt(op, [*narrow, *addend], SINGLE, accumulator=SINGLE))
        elif isinstance(op, AttentionOp) and op.accumulator is None and is_single(op.q):
            narrow = [self._form(factor, HALF) for factor in op.operands[:3]]
            mask = [self._form(value, SINGLE) for value in op.operands[3:]]
            self._define(op, rebuilt(op, [*narrow, *mask], HALF, accumulator=SINGLE))
        elif (
            (isinstance(op, MOVES) or (isinstance(op, PadOp) and _is_half(op.value.value.data)))
            and is_single(op.x)
            and self._is_here(op.x, HALF)
        ):
            self._define(op, rebuilt(op, [self._form(op.x, HALF)], HALF))
        else:
            new = op.clone({value: self._form(value, self._width(value, False)) for value in op.operands})
            self._define(op, new)

    def _is_narrowed(self, op: ConvOp | GemmOp | MatmulOp) -> bool:
        """Whether a contraction is of f32, and none of its constant factors exceeds f16."""
        if not all(is_single(factor) for factor in op.operands[:2]) or op.accumulator not in (None, SINGLE):
            return False
        arrays = [self._stored.constant(self._outside.get(factor, factor)) for factor in op.operands[:2]]
        return all(array is None or fits_half(array) for array in arrays)

    def _width(self, value: SSAValue, half: bool) -> Width | None:
        """The form to ask for; None for a value that has only one."""
        if not is_single(value):
            return None
        return HALF if half else SINGLE

    def _define(self, old: Operation, new: Operation) -> None:
        self._body.add_op(new)
        for before, after in zip(old.results, new.results, strict=True):
            width = HALF if is_single(before) and not is_single(after) else self._width(before, False)
            self._forms[before, width] = after

    def _is_here(self, value: SSAValue, width: Width) -> bool:
        """Whether a form is to be had without a cast."""
        outside = self._outside.get(value)
        return (value, width) in self._forms or (
            outside is not None and self._stored.is_half(outside) == (width == HALF)
        )

    def _form(self, value: SSAValue, width: Width | None) -> SSAValue:
        if (found := self._forms.get((value, width))) is not None:
            return found
        outside = self._outside.get(value)
        if outside is not None and (width != SINGLE or not self._stored.is_half(outside)):
            source = self._stored.half(outside, self._old) if width == HALF else outside
            made: SSAValue = self._body.insert_arg(source.type, len(self._body.args))
            self._inputs.append(source)
        else:
            assert width is not None
            cast = CastOp(self._form(value, HALF if width == SINGLE else SINGLE), width)
            # What leaves the group is the value of its node, narrowed; what enters it is none of its own.
            is_result = isinstance(self._member, YieldOp) and isinstance(value.owner, Operation)
            location = value.owner.location if isinstance(value.owner, Operation) else self._member.location
            cast.location = location if is_result else derived(location, str(width))
            self._body.add_op(cast)
            made = cast.result
        made.name_hint = value.name_hint
        self._forms[value, width] = made
        return made
