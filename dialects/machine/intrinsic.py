# SPDX-License-Identifier: Apache-2.0
"""What the units and engines of a machine compute: intrinsics, whose behaviour is a structured op."""

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
    i64,
)
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def, region_def, traits_def
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.hints import isa

from penstock.dialects.cycles import Cycles, Timing
from penstock.dialects.diagnostics import nearest_or_all
from penstock.dialects.machine.cycle_faults import cycle_faults
from penstock.dialects.machine.directives import CycleCount, DimList, OperandList
from penstock.dialects.machine.part import (
    DENSE,
    DRAM,
    IMMEDIATE,
    STRIDES,
    IntegerProperty,
    PartFault,
    int_of,
    ints_of,
    name_of,
)
from penstock.dialects.machine.spelling import SPELLING, SpelledPart
from penstock.dialects.products import added_product


@dataclass(frozen=True)
class OperandSpec:
    """One operand of an intrinsic; in the order of the region's arguments, the written one last."""

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


@irdl_op_definition
class IntrinsicOp(SpelledPart):
    """
    What one instruction of `unit` does, or what DMA engine `dma` can do on the way, as one `linalg.generic`.

    The region takes the operands: a memref with dynamic dims in the scope that the instruction demands (none for
    off chip), or a scalar, which is an immediate of `imm_bits` bits. The generic uses each once, in order, the
    written one last. `operands` names them and says which strides each permits; `shape` says for each loop of the
    generic which extents one application covers. On a unit, n applications cost n * `ii` + `depth` cycles, and what it
    takes to load the operand that stays in the unit; on a DMA engine it costs what the transfer costs.
    """

    name = "machine.intrinsic"
    KIND: ClassVar[str] = "intrinsic"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("depth", "load")
    CYCLES: ClassVar[tuple[str, ...]] = ("ii", "load")
    """The keys that may be an expression of the dims."""

    unit = opt_prop_def(FlatSymbolRefAttrConstr)
    """The unit that it runs on; either this or `dma` is there."""
    dma = opt_prop_def(FlatSymbolRefAttrConstr)
    """The engine that performs it on the way."""
    operand_names = prop_def(ArrayAttr[StringAttr], prop_name="operand_names")
    """The names of the operands of the region."""
    strides = prop_def(ArrayAttr[StringAttr])
    """Which strides each operand permits: `dense`, `row` or `granule`."""
    dim_names = prop_def(ArrayAttr[StringAttr], prop_name="dims")
    """The names of the loops of the behaviour."""
    extents = prop_def(ArrayAttr[DenseArrayBase[I64]], prop_name="shape")
    """For each loop the extents of one application: one, a range of two, or none for any."""
    ii = opt_prop_def(IntegerAttr[I64] | StringAttr)
    """Cycles from one application to the next, a number or an expression of its extents, as `max(m, 256)`; of a unit
    only, where it is required."""
    depth_attr = opt_prop_def(IntegerAttr[I64], prop_name="depth")
    """Cycles that a command takes beyond its applications; of a unit only, where it is required."""
    stationary = opt_prop_def(StringAttr)
    """The operand that is read, of which the unit keeps a block while it is reused; of a unit only."""
    load = opt_prop_def(IntegerAttr[I64] | StringAttr)
    """Cycles to load a block of the stationary operand, in which the unit does nothing else; as `ii`."""
    efficiency = opt_prop_def(DenseArrayBase.constr(i64))
    """[part, whole]: of a call of a library, the share of the processor's multiply-adds that it does; its applications
    take as long as those, and what it reads and writes as long as the processor takes to copy it. In place of `ii`."""
    iteration_limits = opt_prop_def(DenseArrayBase.constr(i64), prop_name="max_iterations")
    """The most applications in a command, one number for each loop of the command, outermost first."""
    listed_limit = opt_prop_def(IntegerAttr[I64], prop_name="micro_ops")
    """The most micro-operations that a command lists, for the dims that none of its loops iterates. The unit then
    iterates over the domain in an order of its own."""
    imm_bits = opt_prop_def(IntegerAttr[I64])
    """Bits of its immediate; required where the behaviour has `imm`, and only there."""
    body = region_def("single_block")
    """The behaviour."""
    traits = traits_def(SymbolOpInterface(), NoTerminator(), IsolatedFromAbove())

    custom_directives = (OperandList, DimList, CycleCount)
    assembly_format = (
        "$sym_name (`unit` $unit^)? (`dma` $dma^)? `operands` custom<OperandList>($operand_names, $strides)"
        " `shape` custom<DimList>($dims, $shape) (`ii` custom<CycleCount>($ii)^)? (`depth` $depth^)?"
        " (`stationary` $stationary^)? (`load` custom<CycleCount>($load)^)?"
        " (`efficiency` $efficiency^)?"
        " (`max_iterations` $max_iterations^)? (`micro_ops` $micro_ops^)? (`imm_bits` $imm_bits^)?"
        f" {SPELLING} (`origin` $origin^)?"
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
    def is_call(self) -> bool:
        """Whether it is a call of a library: a processor performs it on operands that are anywhere in memory."""
        args = self.body.block.args
        return self.unit is not None and all(isa(arg.type, MemRefType) and memory_of(arg) == DRAM for arg in args)

    @property
    def initiation_interval(self) -> int:
        """Cycles from one application to the next, at its largest extents; 0 for what a DMA engine does."""
        cost = self._cycles("ii")
        return cost if isinstance(cost, int) else cost.at([1 if each is None else each[1] for each in self.shape])

    @property
    def timing(self) -> Timing:
        """The cycles of applications beside `depth`."""
        return Timing(self._cycles("ii"), None if self.stationary is None else self._cycles("load"))

    @property
    def stationary_operand(self) -> int | None:
        """The operand of which the unit keeps a block, by its number among those in memory; None if none."""
        if self.stationary is None:
            return None
        return [spec.name for spec in self.operand_specs() if spec.role != IMMEDIATE].index(self.stationary.data)

    def _cycles(self, key: str) -> Cycles | int:
        """A number of cycles, or an expression of the dims; 0 if there is none."""
        match self.properties.get(key):
            case StringAttr(data=text):
                return Cycles(text, self.dims)
            case IntegerAttr(value=number):
                return number.data
            case _:
                return 0

    depth = IntegerProperty("depth")
    """Cycles that a command takes beyond its applications; 0 for what a DMA engine does."""

    @property
    def max_iterations(self) -> tuple[int, ...]:
        """The largest trip count of each loop of one command, outermost first; empty if there is no limit."""
        return ints_of(self.iteration_limits)

    micro_ops = IntegerProperty("micro_ops")
    """How many applications a command lists beside its loops; 0 if its loops are all that it has."""

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
            specs.append(OperandSpec(name, memory_of(arg) or "", dtype, role, strides))
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
        if added_product(self.generic.body.block) is None:
            return 0
        reduces = any(it.data == IteratorType.REDUCTION for it in self.generic.iterator_types)
        largest = [extent[1] for extent in self.shape if extent is not None]
        return prod(largest) if reduces and len(largest) == len(self.shape) else 0

    def own_faults(self) -> Iterator[PartFault]:
        yield from self._performer_faults()
        if self.efficiency is not None and len(self.efficiency) != 2:
            yield PartFault("efficiency", f"efficiency must be [part, whole], but has {len(self.efficiency)} numbers")
        if self.efficiency is not None and self.ii is not None:
            yield PartFault("efficiency", "an intrinsic has either ii or efficiency, not both")
        behaviour = list(self._behaviour_faults())
        yield from behaviour
        if not behaviour:
            yield from self._operand_faults()
            yield from self._immediate_faults()
            shape_faults = list(self._shape_faults())
            yield from shape_faults
            if not shape_faults and self.unit is not None:
                yield from self._stationary_faults()
                names = [name.data for name in self.operand_names]
                moving = set[int]()
                if self.stationary is not None and self.stationary.data in names:
                    moving = self.generic.indexing_maps.data[names.index(self.stationary.data)].data.used_dims()
                yield from cycle_faults("ii", self._cycles("ii"), self.shape, 1, range(len(self.dims)))
                yield from cycle_faults("load", self._cycles("load"), self.shape, 0, moving)
        yield from self.spelling_faults()

    def _performer_faults(self) -> Iterator[PartFault]:
        if (self.unit is None) == (self.dma is None):
            yield PartFault("unit", "an intrinsic names either the unit or the dma that performs it")
            return
        for key in ("ii" if self.efficiency is None else "efficiency", "depth"):
            if self.unit is not None and key not in self.properties:
                yield PartFault(key, f"an intrinsic of a unit needs {key}")
        for key in ("ii", "depth", "stationary", "load", "efficiency", "max_iterations", "micro_ops"):
            if self.dma is not None and key in self.properties:
                yield PartFault(key, f"{key} has no meaning on a dma: it costs what the transfer costs")
        if self.listed_limit is not None and self.iteration_limits is None:
            yield PartFault("micro_ops", "micro_ops has no meaning without max_iterations: loops take every dim")

    def _behaviour_faults(self) -> Iterator[PartFault]:
        block = self.body.block
        ops = list(block.ops)
        if len(ops) != 1 or not isinstance(ops[0], GenericOp):
            yield PartFault("behaviour", "the behaviour must be exactly one linalg.generic")
        elif tuple(ops[0].operands) != tuple(block.args):
            yield PartFault("behaviour", "the behaviour must use each operand once, in their order")
        elif len(ops[0].outputs) != 1:
            yield PartFault("behaviour", "the behaviour must write exactly one operand, the last one")

    def _operand_faults(self) -> Iterator[PartFault]:
        names = [name.data for name in self.operand_names]
        args = self.body.block.args
        if len(names) != len(args) or len(self.strides) != len(args):
            yield PartFault("operands", f"operands has {len(names)} names, but the behaviour {len(args)} operands")
            return
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield PartFault("operands", f'operand "{name}" is named twice')
        memrefs = 0
        for name, strides, arg in zip(names, self.strides, args, strict=True):
            for message in self._argument_faults(strides.data, arg):
                yield PartFault("operands", f'operand "{name}" {message}', (), (memrefs,))
            memrefs += isinstance(arg.type, MemRefType)

    def _stationary_faults(self) -> Iterator[PartFault]:
        if (self.stationary is None) != (self.load is None):
            missing = "load" if self.load is None else "stationary"
            yield PartFault(missing, "stationary names what stays, load the cycles that it takes: give both")
        if self.stationary is None:
            return
        name, roles = self.stationary.data, {spec.name: spec.role for spec in self.operand_specs()}
        if name not in roles:
            read = [each for each, role in roles.items() if role == "in"]
            note = nearest_or_all(name, read, "operands that are read")
            yield PartFault("stationary", f'there is no operand "{name}"', (note,))
        elif roles[name] != "in":
            yield PartFault("stationary", f'only what is read from memory stays, and "{name}" is {roles[name]}')
        if self.listed_limit is not None:
            yield PartFault("stationary", "a unit that lists micro-operations iterates in an order of its own")

    def _immediate_faults(self) -> Iterator[PartFault]:
        uses = any(not isinstance(arg.type, MemRefType) for arg in self.body.block.args)
        if uses and self.imm_bits is None:
            yield PartFault("imm_bits", "the behaviour takes an immediate, but imm_bits is missing")
        if not uses and self.imm_bits is not None:
            yield PartFault("imm_bits", "the behaviour takes no immediate, but imm_bits is given")

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
        scope = memory_of(arg)
        if scope is None:
            yield f"must name its scope by a string, but is {arg.type}"
        elif scope == DRAM and isinstance(arg.type.memory_space, StringAttr):
            yield "is off chip, which is written as no memory space"

    def _shape_faults(self) -> Iterator[PartFault]:
        dims = self.dims
        loops = len(self.generic.iterator_types)
        if len(dims) != loops or len(self.extents) != loops:
            yield PartFault("shape", f"shape has {len(dims)} dims, but the behaviour {loops} loops")
            return
        for dim in sorted({dim for dim in dims if dims.count(dim) > 1}):
            yield PartFault("shape", f'dim "{dim}" is named twice')
        for dim, extents in zip(dims, self.extents, strict=True):
            if (fault := _extent_fault(ints_of(extents), bounded=self.unit is not None)) is not None:
                yield PartFault("shape", f'dim "{dim}" {fault}', (), (dim,))


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


def memory_of(value: SSAValue) -> str | None:
    """The scope of a memref, "dram" where it has none; None if its memory space is no string."""
    assert isa(value.type, MemRefType)
    match value.type.memory_space:
        case NoneAttr():
            return DRAM
        case StringAttr() as space:
            return space.data
        case _:
            return None
