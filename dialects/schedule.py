# SPDX-License-Identifier: Apache-2.0
"""
The `schedule` dialect: what MLIR's `transform` dialect lacks to say how a kernel uses a machine, on the same handles.

A schedule is a `transform.named_sequence` with the name of its kernel. Its ops transform the operations that their
handles stand for, one after the other; `passes/schedule` applies them. An op that replaces what a handle stands for
consumes the handle. All results are `!transform.any_op`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
)
from xdsl.dialects.transform import NamedSequenceOp, TransformOpHandleType
from xdsl.dialects.utils import DynamicIndexList, verify_dynamic_index_list
from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    TypeDirective,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects import schedule_accel, schedule_loops, schedule_memory, schedule_parallel, schedule_tensor
from penstock.dialects.diagnostics import UnknownName
from penstock.dialects.upstream.handle_ops import ANY_OP, ANY_PARAM, I64_ARRAY, HandleOp, Value, split_sizes
from penstock.dialects.window import IntegerList

EDGES = ("divides", "whole", "overlap", "zeros", "padded")
"""What happens at the end of a dim that a tile does not divide: see `TileAndFuseOp`."""


@dataclass
class Schedules:
    """The schedules of a program's kernels, by the names of the kernels."""

    given: dict[str, NamedSequenceOp] = field(default_factory=dict[str, NamedSequenceOp])
    """Those that a person gives: passes apply them instead of deciding."""
    applied: dict[str, NamedSequenceOp] = field(default_factory=dict[str, NamedSequenceOp])
    """Those that have been applied, given or decided."""
    left_out: set[str] = field(default_factory=set[str])
    """Those of `given` whose kernels are not there any more after `mem-promote`: what they say after it is left out."""
    open: dict[str, object] = field(default_factory=dict[str, object])
    """What their handles stand for in the section that was begun last, which `passes/schedule` keeps here."""


def _looped(sizes: Sequence[int], edges: ArrayAttr[StringAttr] | None) -> list[int]:
    """The dims that become loops."""
    padded = {number for number, edge in enumerate(edges or ()) if edge.data == "padded"}
    return [number for number, size in enumerate(sizes) if size and number not in padded]


def _handle_count(fused: int, sizes: Sequence[int], edges: ArrayAttr[StringAttr] | None) -> int:
    """One for the target, one for each fused op, and one for each dim that becomes a loop."""
    return 1 + fused + len(_looped(sizes, edges))


@irdl_custom_directive
class TileHandles(CustomDirective):
    """Nothing in the text: the types of the handles that `schedule.tile` returns, as many as its options say."""

    handles: TypeDirective
    fused: VariadicOperandVariable
    sizes: AttributeVariable
    edges: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        sizes, edges = state.properties[self.sizes.name], state.properties.get(self.edges.name)
        assert isa(sizes, DenseArrayBase[IntegerType])
        known = edges if isa(edges, ArrayAttr[StringAttr]) else None
        count = _handle_count(len(state.operands[self.fused.index] or ()), sizes.get_values(), known)
        self.handles.set(state, [ANY_OP] * count)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        pass


@irdl_op_definition
class TileAndFuseOp(HandleOp):
    """
    Compute an op a tile at a time, and others of its kernel in the same tile: tile and fuse.

    `sizes` has one size for each dim of the target, a number or one of the parameters `dynamic_sizes`, 0 for one that
    is not cut. Loops go over parallel dims first, then over reductions; `interchange` lists all dims, the outermost
    loop first. `fusing` names the ops that are computed in the tile, too: producers, and consumers that lead from the
    target to the one op whose result is used outside.

    `edges` says, for each dim, what happens where the size does not divide it: `"overlap"` shifts the last tile of a
    parallel dim inwards, so that some elements are computed twice; `"zeros"` lets the last tile of a reduction read
    zeros past the end; `"padded"` makes one tile longer than the dim, on padded operands, and keeps the valid part.
    Without it sizes have to divide. `unpadded` lists the fused ops that see no padding, from 0, by their position.
    `slots` says how many slots each scope has for what the loops refill; `remark` is for people.

    Consumes the handles. Returns those of the tiled target, of the tile of each fused op, and of the loops, outermost
    first.

    ```mlir
    %tile, %zero_tile, %i, %k = schedule.tile %product fusing(%zero) sizes [24, 0, 32] interchange [0, 1, 2]
      edges ["overlap", "whole", "divides"] {slots = {acc = 2 : i64, spad = 2 : i64}}
    ```
    """

    name = "schedule.tile"
    target = operand_def(ANY_OP)
    fused = var_operand_def(ANY_OP)
    dynamic_sizes = var_operand_def(ANY_PARAM)
    sizes = prop_def(I64_ARRAY)
    interchange = opt_prop_def(I64_ARRAY)
    edges = opt_prop_def(ArrayAttr[StringAttr])
    unpadded = opt_prop_def(I64_ARRAY)
    slots = opt_prop_def(DictionaryAttr)
    remark = opt_prop_def(StringAttr)
    handles = var_result_def(TransformOpHandleType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$target (`fusing` `(` $fused^ `)`)? `sizes` custom<DynamicIndexList>($dynamic_sizes, $sizes)"
        " (`interchange` custom<IntegerList>($interchange)^)? (`edges` $edges^)?"
        " (`unpadded` custom<IntegerList>($unpadded)^)? attr-dict"
        " custom<TileHandles>(type($handles), ref($fused), ref($sizes), ref($edges))"
    )
    custom_directives = (DynamicIndexList, IntegerList, TileHandles)

    def __init__(
        self,
        target: SSAValue,
        fused: Sequence[SSAValue],
        sizes: Sequence[int | SSAValue],
        *,
        edges: Sequence[str] | None = None,
        **options: Value,
    ):
        static, dynamic = split_sizes(sizes)
        ends = ArrayAttr([StringAttr(edge) for edge in edges]) if edges is not None else None
        count = _handle_count(len(fused), static, ends)
        super().__init__(target, fused, dynamic, sizes=static, edges=ends, handles=count, **options)

    @property
    def tiled(self) -> SSAValue:
        """The handle of the tiled target."""
        return self.handles[0]

    @property
    def loops(self) -> Sequence[SSAValue]:
        """The handles of the loops, outermost first."""
        return self.handles[1 + len(self.fused) :]

    @property
    def looped_dims(self) -> list[int]:
        """The dims that become loops: in the order of the loops, if there is an interchange."""
        looped = _looped(self.sizes.get_values(), self.edges)
        return looped if self.interchange is None else [dim for dim in self.interchange.get_values() if dim in looped]

    def verify_(self) -> None:
        count = len(self.sizes)
        for edge in self.edges or ():
            if edge.data not in EDGES:
                raise UnknownName(f'there is no edge "{edge.data}"', edge.data, EDGES, "edges")
        if self.edges is not None and len(self.edges) != count:
            raise VerifyException(f"{len(self.edges)} edges for {count} sizes")
        if self.interchange is not None and sorted(self.interchange.get_values()) != list(range(count)):
            raise VerifyException(f"the interchange is no permutation of the {count} dims")
        verify_dynamic_index_list(self.sizes.get_values(), self.dynamic_sizes, DYNAMIC_INDEX)
        if any(size < 0 and size != DYNAMIC_INDEX for size in self.sizes.get_values()):
            raise VerifyException("a size is negative; 0 leaves a dim whole")
        if len(self.handles) != _handle_count(len(self.fused), self.sizes.get_values(), self.edges):
            raise VerifyException("the results are a handle of the target, of each fused op, and of each loop")
        for number in self.unpadded.get_values() if self.unpadded is not None else ():
            if not 0 <= number < len(self.fused):
                raise VerifyException(f"{len(self.fused)} ops are fused: there is no op {number} without padding")
        for scope, slots in self.slots.data.items() if self.slots is not None else ():
            if not isa(slots, IntegerAttr) or slots.value.data < 1:
                raise VerifyException(f'the slots of "{scope}" are a number from 1, not {slots}')


_GROUPS = (schedule_tensor, schedule_loops, schedule_parallel, schedule_memory, schedule_accel)

ScheduleDialect = Dialect("schedule", [TileAndFuseOp, *(op for group in _GROUPS for op in group.OPS)])
