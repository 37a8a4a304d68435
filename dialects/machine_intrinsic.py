"""The operation a machine's unit, or one of its DMA engines, can perform: an intrinsic, its behaviour given as IR."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I64,
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    FlatSymbolRefAttrConstr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    SymbolNameConstraint,
    i64,
)
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def, region_def, traits_def
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.hints import isa

from penstock.dialects.machine_parts import DRAM, Fault, MachinePart, int_of, ints_of, name_of

DENSE = "dense"
STRIDES = (DENSE, "row", "granule")
"""What an operand permits: no gaps; rows any multiple of the granule apart; the same for every outer dim."""

IMMEDIATE = "imm"
"""The role, and in a machine file the name, of a scalar that travels in the instruction."""


@dataclass(frozen=True)
class OperandSpec:
    """One operand of an intrinsic; they stand in the order of the region's arguments, the written one last."""

    name: str
    scope: str
    """The scope it must lie in, "dram" if off chip; an immediate has none, written as the empty string."""
    dtype: Attribute
    """The element type, or the type of an immediate."""
    role: str
    """`in`, `out` (written, not read), `inout`, or `imm`."""
    strides: str
    """`dense`, `row` or `granule`."""


def layout_of(strides: str, rank: int) -> StridedLayoutAttr | NoneAttr:
    """The layout of an operand's memref: none where its elements are adjacent, else an unknown pitch."""
    if strides == DENSE or rank < 2:
        return NoneAttr()
    return StridedLayoutAttr([None] * (rank - 1) + [1])


def _strings(variable: AttributeVariable, op: IRDLOperation) -> list[str]:
    attr = variable.get(op)
    assert isa(attr, ArrayAttr[StringAttr])
    return [name.data for name in attr]


@irdl_custom_directive
class OperandList(CustomDirective):
    """`[a row, b granule, acc]`: the name of each operand and the strides it permits, `dense` where none is said."""

    names: AttributeVariable
    strides: AttributeVariable

    @staticmethod
    def _parse_operand(parser: Parser) -> tuple[StringAttr, StringAttr]:
        name = parser.parse_identifier()
        strides = parser.parse_optional_identifier() or DENSE
        return StringAttr(name), StringAttr(strides)

    def parse(self, parser: Parser, state: ParsingState) -> None:
        operands = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, lambda: self._parse_operand(parser))
        self.names.set(state, ArrayAttr(name for name, _ in operands))
        self.strides.set(state, ArrayAttr(strides for _, strides in operands))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        pairs = zip(_strings(self.names, op), _strings(self.strides, op), strict=True)
        texts = [name if strides == DENSE else f"{name} {strides}" for name, strides in pairs]
        with printer.in_square_brackets():
            printer.print_list(texts, printer.print_string)


@irdl_custom_directive
class DimList(CustomDirective):
    """`{m = 1, n = [1, 4], k = ?}`: each dim of the loops with its exact extent, its range, or any extent."""

    dims: AttributeVariable
    shape: AttributeVariable

    @staticmethod
    def _parse_dim(parser: Parser) -> tuple[StringAttr, DenseArrayBase]:
        name = parser.parse_identifier()
        parser.parse_punctuation("=")
        if parser.parse_optional_punctuation("?"):
            extents: list[int] = []
        else:
            listed = parser.parse_optional_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
            extents = [parser.parse_integer()] if listed is None else listed
        return StringAttr(name), DenseArrayBase.from_list(i64, extents)

    def parse(self, parser: Parser, state: ParsingState) -> None:
        dims = parser.parse_comma_separated_list(Parser.Delimiter.BRACES, lambda: self._parse_dim(parser))
        self.dims.set(state, ArrayAttr(name for name, _ in dims))
        self.shape.set(state, ArrayAttr(extents for _, extents in dims))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        shape = self.shape.get(op)
        assert isa(shape, ArrayAttr[DenseArrayBase[I64]])
        texts: list[str] = []
        for name, extents in zip(_strings(self.dims, op), shape, strict=True):
            values = [str(value) for value in extents.iter_values()]
            match values:
                case []:
                    texts.append(f"{name} = ?")
                case [value]:
                    texts.append(f"{name} = {value}")
                case _:
                    texts.append(f"{name} = [{', '.join(values)}]")
        with printer.in_braces():
            printer.print_list(texts, printer.print_string)


@irdl_op_definition
class IntrinsicOp(MachinePart):
    """
    What one instruction of `unit` does, or what DMA engine `dma` can do on the way, as one `linalg.generic`.

    The region takes the operands: a memref with dynamic dims in the scope that the instruction demands (none for
    off chip), or a scalar, which is an immediate of `imm_bits` bits. The generic uses each once, in order, the
    written one last. `operands` names them and says which strides each permits; `shape` says for each loop of the
    generic which extents one application covers. On a unit, n applications cost n * `ii` + `depth` cycles and one
    command covers at most `max_iterations` applications, one number a loop of the command; on a DMA engine it
    costs what the transfer costs. With `micro_ops`, dims that none of those loops iterates are listed as
    micro-operations, at most so many in a command; the unit then iterates over the domain in an order of its own.
    """

    name = "machine.intrinsic"
    KIND: ClassVar[str] = "intrinsic"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("depth",)

    sym_name = prop_def(SymbolNameConstraint())
    unit = opt_prop_def(FlatSymbolRefAttrConstr)
    dma = opt_prop_def(FlatSymbolRefAttrConstr)
    operand_names = prop_def(ArrayAttr[StringAttr], prop_name="operand_names")
    strides = prop_def(ArrayAttr[StringAttr])
    dim_names = prop_def(ArrayAttr[StringAttr], prop_name="dims")
    extents = prop_def(ArrayAttr[DenseArrayBase[I64]], prop_name="shape")
    ii = opt_prop_def(IntegerAttr[I64])
    depth_attr = opt_prop_def(IntegerAttr[I64], prop_name="depth")
    iteration_limits = opt_prop_def(DenseArrayBase.constr(i64), prop_name="max_iterations")
    listed_limit = opt_prop_def(IntegerAttr[I64], prop_name="micro_ops")
    imm_bits = opt_prop_def(IntegerAttr[I64])
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), NoTerminator(), IsolatedFromAbove())

    custom_directives = (OperandList, DimList)
    assembly_format = (
        "$sym_name (`unit` $unit^)? (`dma` $dma^)? `operands` custom<OperandList>($operand_names, $strides)"
        " `shape` custom<DimList>($dims, $shape) (`ii` $ii^)? (`depth` $depth^)?"
        " (`max_iterations` $max_iterations^)? (`micro_ops` $micro_ops^)? (`imm_bits` $imm_bits^)? (`origin` $origin^)?"
        " attr-dict-with-keyword $body"
    )

    @property
    def unit_name(self) -> str | None:
        """The unit it runs on; None where a DMA engine performs it."""
        return name_of(self.unit)

    @property
    def dma_name(self) -> str | None:
        """The DMA engine that performs it; None where a unit does."""
        return name_of(self.dma)

    @property
    def generic(self) -> GenericOp:
        """The behaviour."""
        op = self.body.block.first_op
        assert isinstance(op, GenericOp)
        return op

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the generic's loops, in their order."""
        return tuple(name.data for name in self.dim_names)

    @property
    def shape(self) -> tuple[tuple[int, int] | None, ...]:
        """For each loop the least and the largest extent of one application, or None for any."""
        ranges = (ints_of(extents) for extents in self.extents)
        return tuple((values[0], values[-1]) if values else None for values in ranges)

    @property
    def initiation_interval(self) -> int:
        """Cycles from one application to the next; 0 for what a DMA engine does."""
        return int_of(self.ii)

    @property
    def depth(self) -> int:
        """Cycles that a command takes beyond its applications; 0 for what a DMA engine does."""
        return int_of(self.depth_attr)

    @property
    def max_iterations(self) -> tuple[int, ...]:
        """The largest trip count of each loop of one command, outermost first; empty if there is no limit."""
        return ints_of(self.iteration_limits)

    @property
    def micro_ops(self) -> int:
        """How many applications a command lists beside its loops; 0 if its loops are all that it has."""
        return int_of(self.listed_limit)

    def operand_specs(self) -> tuple[OperandSpec, ...]:
        """The operands, in the order of the region's arguments and of the generic's operands."""
        args = self.body.block.args
        scalars = self.generic.body.block.args
        specs: list[OperandSpec] = []
        for index, (arg, scalar) in enumerate(zip(args, scalars, strict=True)):
            name, strides = self.operand_names.data[index].data, self.strides.data[index].data
            if not isa(arg.type, MemRefType):
                specs.append(OperandSpec(name, "", arg.type, IMMEDIATE, strides))
                continue
            role = "in"
            if arg is args[-1]:
                role = "inout" if scalar.uses else "out"
            dtype = arg.type.element_type
            specs.append(OperandSpec(name, scope_of(arg) or "", dtype, role, strides))
        return tuple(specs)

    def body_with(self, immediates: Sequence[Attribute]) -> Region:
        """
        The behaviour's body with its immediates bound to these constants: its arguments are the elements of the
        operands in memory. Not to be changed.
        """
        if not immediates:
            return self.generic.body
        body = self.generic.body.clone()
        # The copy belongs to an op, where faults in it are located.
        GenericOp((), (), body, (), ()).location = self.location
        specs, values = self.operand_specs(), list(immediates)
        for spec, arg in reversed(list(zip(specs, body.block.args, strict=True))):
            if spec.role == IMMEDIATE:
                constant = arith.ConstantOp(values.pop())  # pyright: ignore[reportArgumentType]
                Rewriter.insert_op(constant, InsertPoint.at_start(body.block))
                arg.replace_all_uses_with(constant.result)
                body.block.erase_arg(arg)
        return body

    def immediate_fault(self, value: Attribute) -> str | None:
        """Why the constant `value` cannot be an immediate of this intrinsic; None if it can."""
        bits = int_of(self.imm_bits)
        match value:
            case IntegerAttr(type=IntegerType()):
                number = value.value.data
                if -(1 << (bits - 1)) <= number < 1 << (bits - 1):
                    return None
                return f"its immediate has {bits} bits, too few for {number}"
            case FloatAttr():
                if bits >= value.type.bitwidth or (bits == _HALF and _is_half(value.value.data)):
                    return None
                return f"its immediate has {bits} bits, too few for {value.value.data} : {value.type}"
            case _:
                return "its immediate is a number"

    def macs_per_issue(self) -> int:
        """Multiply-accumulates of one application at its largest shape; 0 for what does not multiply and add."""
        terminator = self.generic.body.block.last_op
        total = terminator.operands[0].owner if terminator is not None else None
        if not isinstance(total, arith.AddfOp | arith.AddiOp):
            return 0
        if not any(isinstance(part.owner, arith.MulfOp | arith.MuliOp) for part in total.operands):
            return 0
        reduces = any(it.data == IteratorType.REDUCTION for it in self.generic.iterator_types)
        largest = [extent[1] for extent in self.shape if extent is not None]
        return prod(largest) if reduces and len(largest) == len(self.shape) else 0

    def own_faults(self) -> Iterator[Fault]:
        yield from self._place_faults()
        behaviour = list(self._behaviour_faults())
        yield from behaviour
        if not behaviour:
            yield from self._operand_faults()
            yield from self._immediate_faults()
            yield from self._shape_faults()

    def _place_faults(self) -> Iterator[Fault]:
        if (self.unit is None) == (self.dma is None):
            yield Fault("unit", "an intrinsic names either the unit or the dma that performs it")
            return
        for key in ("ii", "depth"):
            if self.unit is not None and key not in self.properties:
                yield Fault(key, f"an intrinsic of a unit needs {key}")
        for key in ("ii", "depth", "max_iterations", "micro_ops"):
            if self.dma is not None and key in self.properties:
                yield Fault(key, f"{key} has no meaning on a dma: it costs what the transfer costs")
        if self.listed_limit is not None and self.iteration_limits is None:
            yield Fault("micro_ops", "micro_ops has no meaning without max_iterations: loops take every dim")

    def _behaviour_faults(self) -> Iterator[Fault]:
        block = self.body.block
        ops = list(block.ops)
        if len(ops) != 1 or not isinstance(ops[0], GenericOp):
            yield Fault("behaviour", "the behaviour must be exactly one linalg.generic")
        elif tuple(ops[0].operands) != tuple(block.args):
            yield Fault("behaviour", "the behaviour must use each operand once, in their order")
        elif len(ops[0].outputs) != 1:
            yield Fault("behaviour", "the behaviour must write exactly one operand, the last one")

    def _operand_faults(self) -> Iterator[Fault]:
        names = [name.data for name in self.operand_names]
        args = self.body.block.args
        if len(names) != len(args) or len(self.strides) != len(args):
            yield Fault("operands", f"operands has {len(names)} names, but the behaviour {len(args)} operands")
            return
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Fault("operands", f'operand "{name}" is named twice')
        memrefs = 0
        for name, strides, arg in zip(names, self.strides, args, strict=True):
            for message in self._argument_faults(strides.data, arg):
                yield Fault("operands", f'operand "{name}" {message}', (), (memrefs,))
            memrefs += isinstance(arg.type, MemRefType)

    def _immediate_faults(self) -> Iterator[Fault]:
        uses = any(not isinstance(arg.type, MemRefType) for arg in self.body.block.args)
        if uses and self.imm_bits is None:
            yield Fault("imm_bits", "the behaviour takes an immediate, but imm_bits is missing")
        if not uses and self.imm_bits is not None:
            yield Fault("imm_bits", "the behaviour takes no immediate, but imm_bits is given")

    def _argument_faults(self, strides: str, arg: SSAValue) -> Iterator[str]:
        if strides not in STRIDES:
            yield f"must have strides of {', '.join(STRIDES)}, but has {strides}"
            return
        if not isa(arg.type, MemRefType):
            if not isinstance(arg.type, IntegerType | AnyFloat):
                yield f"must be a memref or a scalar, but is {arg.type}"
            elif strides != DENSE:
                yield "is an immediate and has no strides"
            return
        shape = arg.type.get_shape()
        if any(extent != DYNAMIC_INDEX for extent in shape):
            yield f"must have dynamic dims only, but is {arg.type}"
        if arg.type.layout != layout_of(strides, len(shape)):
            yield f"permits strides {strides}, which {arg.type} does not say"
        scope = scope_of(arg)
        if scope is None:
            yield f"must name its scope by a string, but is {arg.type}"
        elif scope == DRAM and isinstance(arg.type.memory_space, StringAttr):
            yield "is off chip, which is written as no memory space"
        elif scope == DRAM and self.unit is not None:
            yield "is off chip, where only a dma reaches"

    def _shape_faults(self) -> Iterator[Fault]:
        dims = self.dims
        loops = len(self.generic.iterator_types)
        if len(dims) != loops or len(self.extents) != loops:
            yield Fault("shape", f"shape has {len(dims)} dims, but the behaviour {loops} loops")
            return
        for dim in sorted({dim for dim in dims if dims.count(dim) > 1}):
            yield Fault("shape", f'dim "{dim}" is named twice')
        for dim, extents in zip(dims, self.extents, strict=True):
            if (fault := _extent_fault(ints_of(extents), bounded=self.unit is not None)) is not None:
                yield Fault("shape", f'dim "{dim}" {fault}', (), (dim,))


_HALF = 16


def _is_half(value: float) -> bool:
    """Whether a number is exactly one of IEEE's with 16 bits."""
    try:
        return value != value or struct.unpack("<e", struct.pack("<e", value))[0] == value
    except OverflowError:
        return False


def _extent_fault(extents: tuple[int, ...], *, bounded: bool) -> str | None:
    """What is wrong with the extents of a dim: none, one, or a range of two."""
    match extents:
        case ():
            return "of an intrinsic of a unit must be bounded" if bounded else None
        case (least, *_) if least < 1:
            return f"must be at least 1, but is {least}"
        case (least, most) if least > most:
            return f"has an empty range, {least} to {most}"
        case (_,) | (_, _):
            return None
        case _:
            return f"must be an extent or a range of two, but has {len(extents)} numbers"


def scope_of(value: SSAValue) -> str | None:
    """The scope of a memref, "dram" where it has none; None if its memory space is no string."""
    assert isa(value.type, MemRefType)
    match value.type.memory_space:
        case NoneAttr():
            return DRAM
        case StringAttr() as space:
            return space.data
        case _:
            return None
