"""
The `schedule` dialect: what MLIR's `transform` dialect lacks to say how a kernel uses a machine, on the same handles.

A schedule is a `transform.named_sequence` with the name of its kernel. Its ops transform the operations that their
handles stand for, one after the other; `passes/schedule` applies them. An op that replaces what a handle stands for
consumes the handle. All results are `!transform.any_op`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, DenseArrayBase, DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.dialects.transform import NamedSequenceOp, TransformOpHandleType, TransformParamHandleType
from xdsl.dialects.utils import print_dynamic_index_list, split_dynamic_index_list, verify_dynamic_index_list
from xdsl.ir import Attribute, Dialect, SSAValue
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
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects import schedule_accel, schedule_loops, schedule_memory, schedule_parallel, schedule_tensor
from penstock.dialects.diagnostics import UnknownName
from penstock.dialects.upstream.transform import ANY_OP, ANY_PARAM

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


@irdl_op_definition
class TileAndFuseOp(IRDLOperation):
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
    dynamic_sizes = var_operand_def(TransformParamHandleType)
    sizes = prop_def(DenseArrayBase.constr(i64))
    interchange = opt_prop_def(DenseArrayBase.constr(i64))
    edges = opt_prop_def(ArrayAttr[StringAttr])
    unpadded = opt_prop_def(DenseArrayBase.constr(i64))
    slots = opt_prop_def(DictionaryAttr)
    remark = opt_prop_def(StringAttr)
    handles = var_result_def(TransformOpHandleType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        target: SSAValue,
        fused: Sequence[SSAValue],
        sizes: Sequence[int | SSAValue],
        *,
        interchange: Sequence[int] | None = None,
        edges: Sequence[str] | None = None,
        unpadded: Sequence[int] = (),
        slots: Mapping[str, int] | None = None,
        remark: str = "",
    ):
        ends = ArrayAttr([StringAttr(edge) for edge in edges]) if edges is not None else None
        static, dynamic = split_dynamic_index_list(sizes, DYNAMIC_INDEX)
        properties: dict[str, Attribute | None] = {
            "sizes": DenseArrayBase.from_list(i64, static),
            "interchange": DenseArrayBase.from_list(i64, interchange) if interchange is not None else None,
            "edges": ends,
            "unpadded": DenseArrayBase.from_list(i64, unpadded) if unpadded else None,
            "slots": DictionaryAttr({s: IntegerAttr(n, i64) for s, n in slots.items()}) if slots else None,
            "remark": StringAttr(remark) if remark else None,
        }
        super().__init__(
            operands=[target, fused, dynamic],
            properties=properties,
            result_types=[[ANY_OP] * (1 + len(fused) + len(_looped(static, ends)))],
        )

    @property
    def tiled(self) -> SSAValue:
        """The handle of the tiled target."""
        return self.handles[0]

    @property
    def loops(self) -> Sequence[SSAValue]:
        """The handles of the loops, outermost first."""
        return self.handles[1 + len(self.fused) :]

    def verify_(self) -> None:
        count = len(self.sizes)
        for edge in self.edges or ():
            if edge.data not in EDGES:
                raise UnknownName(f'there is no edge "{edge.data}"', edge.data, EDGES, "edges")
        if self.edges is not None and len(self.edges) != count:
            raise VerifyException(f"{len(self.edges)} edges for {count} sizes")
        for scope, slots in self.slots.data.items() if self.slots is not None else ():
            if not isa(slots, IntegerAttr) or slots.value.data < 1:
                raise VerifyException(f'the slots of "{scope}" are a number from 1, not {slots}')
        if self.interchange is not None and sorted(self.interchange.get_values()) != list(range(count)):
            raise VerifyException(f"the interchange is no permutation of the {count} dims")
        verify_dynamic_index_list(self.sizes.get_values(), self.dynamic_sizes, DYNAMIC_INDEX)
        if any(size < 0 and size != DYNAMIC_INDEX for size in self.sizes.get_values()):
            raise VerifyException("a size is negative; 0 leaves a dim whole")
        if len(self.handles) != 1 + len(self.fused) + len(_looped(self.sizes.get_values(), self.edges)):
            raise VerifyException("the results are a handle of the target, of each fused op, and of each loop")
        for number in self.unpadded.get_values() if self.unpadded is not None else ():
            if not 0 <= number < len(self.fused):
                raise VerifyException(f"{len(self.fused)} ops are fused: there is no op {number} without padding")
        for scope, slots in self.slots.data.items() if self.slots is not None else ():
            if not isa(slots, IntegerAttr) or slots.value.data < 1:
                raise VerifyException(f'the slots of "{scope}" are a number from 1, not {slots}')

    @classmethod
    def parse(cls, parser: Parser) -> TileAndFuseOp:
        target = _handle(parser)
        fused: list[SSAValue] = []
        if parser.parse_optional_keyword("fusing") is not None:
            fused = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _handle(parser))
        parser.parse_keyword("sizes")
        sizes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _size(parser))
        interchange = _integers(parser) if parser.parse_optional_keyword("interchange") is not None else None
        edges = None
        if parser.parse_optional_keyword("edges") is not None:
            edges = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
        unpadded = _integers(parser) if parser.parse_optional_keyword("unpadded") is not None else ()
        at = parser.pos
        rest = parser.parse_optional_attr_dict()
        if edges is not None and len(edges) != len(sizes):
            parser.raise_error(f"{len(edges)} edges for {len(sizes)} sizes", at, at)
        op = cls(target, fused, sizes, interchange=interchange, edges=edges, unpadded=unpadded)
        for name in ("slots", "remark"):
            if name in rest:
                op.properties[name] = rest.pop(name)
        op.attributes |= rest
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.target)
        if self.fused:
            printer.print_string(" fusing(")
            printer.print_list(self.fused, printer.print_operand)
            printer.print_string(")")
        printer.print_string(" sizes ")
        print_dynamic_index_list(printer, DYNAMIC_INDEX, self.dynamic_sizes, self.sizes.get_values())
        if self.interchange is not None:
            printer.print_string(f" interchange {list(self.interchange.get_values())}")
        if self.edges is not None:
            printer.print_string(" edges ")
            printer.print_attribute(self.edges)
        if self.unpadded is not None:
            printer.print_string(f" unpadded {list(self.unpadded.get_values())}")
        printer.print_op_attributes(
            {name: self.properties[name] for name in ("slots", "remark") if name in self.properties} | self.attributes
        )


def _looped(sizes: Sequence[int], edges: ArrayAttr[StringAttr] | None) -> list[int]:
    """The dims that become loops."""
    padded = {number for number, edge in enumerate(edges or ()) if edge.data == "padded"}
    return [number for number, size in enumerate(sizes) if size and number not in padded]


def _handle(parser: Parser) -> SSAValue:
    return parser.resolve_operand(parser.parse_unresolved_operand(), ANY_OP)


def _size(parser: Parser) -> int | SSAValue:
    value = parser.parse_optional_unresolved_operand()
    return parser.parse_integer() if value is None else parser.resolve_operand(value, ANY_PARAM)


def _integers(parser: Parser) -> list[int]:
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)


_GROUPS = (schedule_tensor, schedule_loops, schedule_parallel, schedule_memory, schedule_accel)

Schedule = Dialect("schedule", [TileAndFuseOp, *(op for group in _GROUPS for op in group.OPS)])
