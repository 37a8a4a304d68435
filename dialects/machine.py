"""
The machine dialect: the target, in the module, so that a module is self-contained.

A machine is a tree of scopes, DMA engines between them, units with intrinsics, and queues between the units.
People write it as TOML (`machines/*.toml`), which `penstock.lowering.from_machine_toml` expands to these
operations; passes read them through the accessors here.

The keys of an operation are those of its table in a machine file, so nothing is lost on the way into the IR. What a
part demands of its own properties is said once, in `faults`, and what parts demand of each other in those of the
target; the verifier raises the first of them, and the reader of machine files reports all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar, cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I64,
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    i64,
)
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Dialect, Region, SSAValue
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
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.products import added_product

DRAM = "dram"
"""The name of everything off chip; no scope may be called so, and its memrefs have no memory space."""

HOST = "host"
"""The device that is always there: what no machine runs, the host does."""

REGISTERS = "registers"
"""The scope of a processor's vector registers: its buffers are local variables of generated C."""

DENSE = "dense"
STRIDES = (DENSE, "row", "granule")
"""What an operand permits: no gaps; rows any multiple of the granule apart; the same for every outer dim."""

IMMEDIATE = "imm"
"""The role, and in a machine file the name, of a scalar that travels in the instruction."""

CONVERT_RULES = ("truncate", "saturate")
FULL_POLICIES = ("error", "block")

_TARGET = "machine.target"


class PartFault(NamedTuple):
    """What is wrong with a part, and which of its keys is to blame."""

    key: str
    message: str
    notes: tuple[str, ...] = ()
    inside: tuple[str | int, ...] = ()
    """The way from the key's value in a machine file to the place in it that is meant."""


def int_of(attr: IntegerAttr[I64] | None, default: int = 0) -> int:
    """The value of an integer property, or `default` where it is absent."""
    return default if attr is None else attr.value.data


def ints_of(attr: DenseArrayBase[I64] | None) -> tuple[int, ...]:
    """The values of a list property, or none where it is absent."""
    return () if attr is None else tuple(attr.iter_values())


def names_of(refs: ArrayAttr[SymbolRefAttr]) -> tuple[str, ...]:
    """The names that a list of symbol references refers to."""
    return tuple(ref.root_reference.data for ref in refs)


def name_of(ref: SymbolRefAttr | None) -> str | None:
    """The name that a symbol reference refers to."""
    return None if ref is None else ref.root_reference.data


def numbers_of(attr: Attribute) -> tuple[int, ...]:
    """The numbers in a property: one, several, or none where it holds something else."""
    # Every verification comes here: `isa` on the full types would take most of its time.
    if isinstance(attr, IntegerAttr):
        return (attr.value.data,)
    if isinstance(attr, DenseArrayBase):
        return tuple(cast(DenseArrayBase[I64], attr).iter_values())
    return ()


class IntegerProperty(property):
    """An integer property of an op as a number; `default` where it is absent."""

    def __init__(self, key: str, default: int = 0):
        super().__init__(lambda op: numbers_of(op.properties[key])[0] if key in op.properties else default)

    if TYPE_CHECKING:

        def __get__(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, instance: object, owner: type | None = None, /
        ) -> int: ...


class MachinePart(IRDLOperation):
    """
    A part of a `machine.target`.

    `origin` says where its numbers come from: `all` for the whole table, else the number's own key. Each value is
    a key of the target's `sources`, or `"assumed"`; a pair adds the arithmetic by which the number was derived. The
    string under a property is what the reference says of its key in a machine file.
    """

    KIND: ClassVar[str]
    """The word for such a part, as in a machine file."""
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ()
    """The keys whose numbers may be zero; all others are at least one."""

    origin = opt_prop_def(DictionaryAttr)
    """Where its numbers come from; in a machine file `source` and `assumed` say so."""

    @property
    def title(self) -> str:
        """The part in a message: its kind and its name."""
        name = self.properties.get("sym_name")
        return f'{self.KIND} "{name.data}"' if isinstance(name, StringAttr) else self.KIND

    def own_faults(self) -> Iterator[PartFault]:
        """What is wrong with this part beyond the range of its numbers."""
        return iter(())

    def faults(self) -> Iterator[PartFault]:
        """What is wrong with this part, taken alone."""
        for key, attr in self.properties.items():
            yield from number_faults(key, attr, 0 if key in self.AT_LEAST_ZERO else 1)
        yield from self.own_faults()

    def verify_(self) -> None:
        parent = self.parent_op()
        if parent is not None and parent.name != _TARGET:
            raise VerifyException(f"{self.title} must be directly in a {_TARGET}")
        for fault in self.faults():
            raise VerifyException(f"{self.title}: {fault.message}")


class NamedPart(MachinePart):
    """A part that others refer to by its symbol."""

    sym_name = prop_def(SymbolNameConstraint())
    """What others call it."""
    traits = traits_def(SymbolOpInterface())


def number_faults(key: str, attr: Attribute, least: int) -> Iterator[PartFault]:
    """The numbers of a property that are below `least`."""
    for value in numbers_of(attr):
        if value < least:
            yield PartFault(key, f"{key} must be at least {least}, but is {value}")


def rate_faults(rate: DenseArrayBase[I64] | None) -> Iterator[PartFault]:
    """A rate is a fraction [bytes, cycles]."""
    if rate is not None and len(rate) != 2:
        yield PartFault("rate", f"rate must be [bytes, cycles], but has {len(rate)} numbers")


@irdl_op_definition
class ScopeOp(NamedPart):
    """
    A memory of the machine that software manages: `size` bytes in entries of `granule` bytes.

    A memref lives in it by naming it: `memref<16x32xf32, "spad">`.
    """

    name = "machine.scope"
    KIND: ClassVar[str] = "scope"

    size = prop_def(IntegerAttr[I64])
    """Bytes, a multiple of the granule."""
    granule = prop_def(IntegerAttr[I64])
    """Bytes that offsets, sizes of buffers and the pitch of rows are multiples of."""
    banks = opt_prop_def(IntegerAttr[I64])
    """How many banks it has; one if it is absent."""
    dtypes = prop_def(ArrayAttr)
    """The element types that it holds."""
    rate = opt_prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles] of its on-chip port."""
    parent_scope = opt_prop_def(FlatSymbolRefAttrConstr, prop_name="parent")
    """The scope that it lies below and is filled from; `dram`, off chip, if it is absent."""

    assembly_format = (
        "$sym_name `size` $size `granule` $granule (`banks` $banks^)? `dtypes` $dtypes"
        " (`rate` $rate^)? (`parent` $parent^)? (`origin` $origin^)? attr-dict"
    )

    size_bytes = IntegerProperty("size")
    granule_bytes = IntegerProperty("granule")
    bank_count = IntegerProperty("banks", 1)

    @property
    def parent_name(self) -> str:
        """The scope this one is filled from; off chip if it names none."""
        return name_of(self.parent_scope) or DRAM

    def own_faults(self) -> Iterator[PartFault]:
        yield from rate_faults(self.rate)
        if self.size_bytes > 0 and self.granule_bytes > 0 and self.size_bytes % self.granule_bytes:
            yield PartFault(
                "size",
                f"size {self.size_bytes} is not a multiple of the granule, {self.granule_bytes}",
            )
        if not self.dtypes.data:
            yield PartFault("dtypes", "dtypes must name at least one element type")


@irdl_op_definition
class BusOp(NamedPart):
    """A path that one transfer at a time occupies, moving `rate` = [bytes, cycles], an exact fraction."""

    name = "machine.bus"
    KIND: ClassVar[str] = "bus"

    rate = prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles]: so many bytes in so many cycles."""

    assembly_format = "$sym_name `rate` $rate (`origin` $origin^)? attr-dict"

    @property
    def bytes_per_cycle(self) -> tuple[int, int]:
        """The rate as (bytes, cycles)."""
        rate_bytes, rate_cycles = ints_of(self.rate)
        return rate_bytes, rate_cycles

    def own_faults(self) -> Iterator[PartFault]:
        yield from rate_faults(self.rate)


@irdl_op_definition
class UnitOp(NamedPart):
    """An in-order stream of commands. The order of units in the target breaks ties between them."""

    name = "machine.unit"
    KIND: ClassVar[str] = "unit"

    assembly_format = "$sym_name (`origin` $origin^)? attr-dict"


@irdl_op_definition
class ProcessorOp(NamedPart):
    """
    The host: a CPU on the same off-chip memory, which runs the kernels that no unit does.

    `ops` and `rate` serve to weigh on which device a kernel runs, and measure nothing; the others say how its vectors
    are best used. Its vector registers are the scope `registers` of the machine.
    """

    name = "machine.processor"
    KIND: ClassVar[str] = "processor"

    ops = prop_def(DenseArrayBase.constr(i64))
    """[operations, cycles]: scalar operations, loads and stores included, in so many cycles of the machine."""
    rate = prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles]: bytes from or to off chip in so many cycles of the machine."""
    vector = opt_prop_def(IntegerAttr[I64])
    """Bytes of a vector register; the processor has as many as the scope `registers` holds."""
    fma = opt_prop_def(DenseArrayBase.constr(i64))
    """[instructions, cycles]: fused multiply-adds of whole vectors; none if it is absent."""
    loads = opt_prop_def(DenseArrayBase.constr(i64))
    """[instructions, cycles]: loads of whole vectors from the first cache."""
    latency = opt_prop_def(IntegerAttr[I64])
    """Cycles from the start of a multiply-add to one that adds to its result."""
    caches = opt_prop_def(DenseArrayBase.constr(i64))
    """Bytes of its caches that one thread has to itself, the first level first."""

    assembly_format = (
        "$sym_name `ops` $ops `rate` $rate (`vector` $vector^)? (`fma` $fma^)? (`loads` $loads^)?"
        " (`latency` $latency^)? (`caches` $caches^)? (`origin` $origin^)? attr-dict"
    )

    vector_bytes = IntegerProperty("vector")
    latency_cycles = IntegerProperty("latency", 1)

    @property
    def cycles_per_op(self) -> float:
        """Cycles of the machine for one scalar operation."""
        operations, cycles = ints_of(self.ops)
        return cycles / operations

    @property
    def cycles_per_byte(self) -> float:
        """Cycles of the machine for one byte from or to off chip."""
        size, cycles = ints_of(self.rate)
        return cycles / size

    @property
    def fmas_per_cycle(self) -> Fraction:
        """Multiply-adds of whole vectors that start in a cycle; 0 if it has none."""
        return Fraction(*ints_of(self.fma)) if self.fma is not None else Fraction(0)

    @property
    def loads_per_cycle(self) -> Fraction:
        """Loads of whole vectors that start in a cycle; one where nothing is said."""
        return Fraction(*ints_of(self.loads)) if self.loads is not None else Fraction(1)

    def own_faults(self) -> Iterator[PartFault]:
        yield from rate_faults(self.rate)
        for key, pair in (("ops", self.ops), ("fma", self.fma), ("loads", self.loads)):
            if pair is not None and len(pair) != 2:
                what = "operations" if key == "ops" else "instructions"
                yield PartFault(key, f"{key} must be [{what}, cycles], but has {len(pair)} numbers")
        if self.vector is not None:
            if self.vector_bytes < 8 or self.vector_bytes & (self.vector_bytes - 1):
                yield PartFault("vector", f"vector must be a power of two of at least 8, but is {self.vector_bytes}")
            for key, numbers in (("fma", self.fma), ("caches", self.caches)):
                if not numbers:
                    yield PartFault("vector", f"a processor with vectors must say its {key}")


@irdl_op_definition
class DmaOp(NamedPart):
    """
    An engine that moves boxes from any scope of `from` to any scope of `to`; its commands run on `unit`.

    A limit that is absent is none.
    """

    name = "machine.dma"
    KIND: ClassVar[str] = "dma"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("latency", "row_overhead", "pad_max")

    unit = prop_def(FlatSymbolRefAttrConstr)
    """The unit whose stream its transfers are in."""
    from_scopes = prop_def(ArrayAttr[SymbolRefAttr], prop_name="from")
    """The scopes that it reads, or `dram`."""
    to_scopes = prop_def(ArrayAttr[SymbolRefAttr], prop_name="to")
    """The scopes that it writes, or `dram`; none that it reads."""
    bus = opt_prop_def(FlatSymbolRefAttrConstr)
    """The bus that a transfer occupies; without one it takes its row overheads only."""
    dims = prop_def(IntegerAttr[I64])
    """Dimensions of a descriptor; boxes of more become loops of transfers."""
    max_count = opt_prop_def(DenseArrayBase.constr(i64))
    """The largest count of each dimension, outermost first, in rows and then entries."""
    max_stride = opt_prop_def(IntegerAttr[I64])
    """The largest stride of a descriptor, in entries."""
    pad_max = opt_prop_def(IntegerAttr[I64])
    """Entries, or rows, of padding that it writes on a side; it writes none if it is absent."""
    align = opt_prop_def(IntegerAttr[I64])
    """Bytes that the address of a buffer off chip is a multiple of; `mem-plan` sees to it."""
    latency = prop_def(IntegerAttr[I64])
    """Cycles from the start of a transfer to its request for the bus."""
    row_overhead = prop_def(IntegerAttr[I64])
    """Cycles for each row of a transfer, besides its bytes."""
    outstanding = prop_def(IntegerAttr[I64])
    """Transfers that it can have in flight."""
    convert = opt_prop_def(DictionaryAttr)
    """The conversion of elements on the way: `{ from, to, rule }`, two element types and `truncate` or `saturate`."""

    assembly_format = (
        "$sym_name `unit` $unit `from` $from `to` $to (`bus` $bus^)? `dims` $dims"
        " (`max_count` $max_count^)? (`max_stride` $max_stride^)? (`pad_max` $pad_max^)?"
        " (`align` $align^)? `latency` $latency `row_overhead` $row_overhead"
        " `outstanding` $outstanding (`convert` $convert^)? (`origin` $origin^)? attr-dict"
    )

    @property
    def unit_name(self) -> str:
        return self.unit.root_reference.data

    @property
    def bus_name(self) -> str | None:
        return name_of(self.bus)

    @property
    def sources(self) -> tuple[str, ...]:
        """The scopes it reads, "dram" among them if it reads off chip."""
        return names_of(self.from_scopes)

    @property
    def destinations(self) -> tuple[str, ...]:
        """The scopes it writes, "dram" among them if it writes off chip."""
        return names_of(self.to_scopes)

    dim_count = IntegerProperty("dims")

    @property
    def max_counts(self) -> tuple[int, ...]:
        """The largest count of each dimension, outermost first; empty if there is no limit."""
        return ints_of(self.max_count)

    @property
    def stride_limit(self) -> int | None:
        """The largest stride, in entries; None if there is no limit."""
        return None if self.max_stride is None else int_of(self.max_stride)

    pad_limit = IntegerProperty("pad_max")
    """The entries of padding it can write on a side."""
    alignment = IntegerProperty("align", 1)
    """What the address of a buffer off chip must be a multiple of, in bytes."""
    latency_cycles = IntegerProperty("latency")
    row_overhead_cycles = IntegerProperty("row_overhead")
    outstanding_limit = IntegerProperty("outstanding")
    """The transfers it can have in flight."""

    @property
    def converts(self) -> tuple[Attribute, Attribute, str] | None:
        """(element type read, element type written, rule), or None for an engine that moves bytes as they are."""
        if self.convert is None:
            return None
        data = self.convert.data
        rule = data["rule"]
        assert isinstance(rule, StringAttr)
        return data["from"], data["to"], rule.data

    def own_faults(self) -> Iterator[PartFault]:
        for key, names in (("from", self.sources), ("to", self.destinations)):
            if not names:
                yield PartFault(key, f'{key} must name at least one scope, or "{DRAM}"')
        for scope in self.sources:
            if scope in self.destinations:
                yield PartFault("to", f'"{scope}" cannot be both read and written by one engine')
        if self.max_count is not None and len(self.max_count) != self.dim_count:
            yield PartFault(
                "max_count",
                f"max_count has {len(self.max_count)} numbers, but descriptors have {self.dim_count} dims",
            )
        if self.convert is not None:
            yield from _convert_faults(self.convert)


def _convert_faults(convert: DictionaryAttr) -> Iterator[PartFault]:
    if set(convert.data) != {"from", "to", "rule"}:
        yield PartFault("convert", "convert must have exactly the keys from, to and rule")
        return
    rule = convert.data["rule"]
    if not isinstance(rule, StringAttr) or rule.data not in CONVERT_RULES:
        yield PartFault("convert", f"the rule of convert must be one of {', '.join(CONVERT_RULES)}")


@irdl_op_definition
class QueueOp(MachinePart):
    """
    A queue of dependence tokens from unit `from` to unit `to`.
    """

    name = "machine.queue"
    KIND: ClassVar[str] = "queue"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("initial",)

    from_unit = prop_def(FlatSymbolRefAttrConstr, prop_name="from")
    """The unit that pushes."""
    to_unit = prop_def(FlatSymbolRefAttrConstr, prop_name="to")
    """The unit that pops."""
    capacity = prop_def(IntegerAttr[I64])
    """The most tokens that it holds."""
    on_full = prop_def(StringAttr)
    """What a push into the full queue is: `error`, or `block` where the pushing unit waits."""
    initial = opt_prop_def(IntegerAttr[I64])
    """Tokens in it at time 0; none if it is absent."""

    assembly_format = (
        "`from` $from `to` $to `capacity` $capacity `on_full` $on_full (`initial` $initial^)?"
        " (`origin` $origin^)? attr-dict"
    )

    @property
    def title(self) -> str:
        return f'queue from "{self.source}" to "{self.destination}"'

    @property
    def source(self) -> str:
        """The unit that pushes."""
        return self.from_unit.root_reference.data

    @property
    def destination(self) -> str:
        """The unit that pops."""
        return self.to_unit.root_reference.data

    capacity_tokens = IntegerProperty("capacity")
    initial_tokens = IntegerProperty("initial")

    @property
    def blocks(self) -> bool:
        """Whether a push into the full queue blocks its unit; otherwise it is an error."""
        return self.on_full.data == "block"

    def own_faults(self) -> Iterator[PartFault]:
        if self.on_full.data not in FULL_POLICIES:
            yield PartFault("on_full", f"on_full must be one of {', '.join(FULL_POLICIES)}")
        if self.initial_tokens > self.capacity_tokens:
            yield PartFault(
                "initial",
                f"initial {self.initial_tokens} exceeds the capacity, {self.capacity_tokens}",
            )
        if self.source == self.destination:
            yield PartFault("to", "a queue must join two different units")


# intrinsics


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
class IntrinsicOp(NamedPart):
    """
    What one instruction of `unit` does, or what DMA engine `dma` can do on the way, as one `linalg.generic`.

    The region takes the operands: a memref with dynamic dims in the scope that the instruction demands (none for
    off chip), or a scalar, which is an immediate of `imm_bits` bits. The generic uses each once, in order, the
    written one last. `operands` names them and says which strides each permits; `shape` says for each loop of the
    generic which extents one application covers. On a unit, n applications cost n * `ii` + `depth` cycles; on a DMA
    engine it costs what the transfer costs.
    """

    name = "machine.intrinsic"
    KIND: ClassVar[str] = "intrinsic"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("depth",)

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
    ii = opt_prop_def(IntegerAttr[I64])
    """Cycles from one application to the next; of a unit only, where it is required."""
    depth_attr = opt_prop_def(IntegerAttr[I64], prop_name="depth")
    """Cycles that a command takes beyond its applications; of a unit only, where it is required."""
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

    initiation_interval = IntegerProperty("ii")
    """Cycles from one application to the next; 0 for what a DMA engine does."""
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
            specs.append(OperandSpec(name, _memory_of(arg) or "", dtype, role, strides))
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
        behaviour = list(self._behaviour_faults())
        yield from behaviour
        if not behaviour:
            yield from self._operand_faults()
            yield from self._immediate_faults()
            yield from self._shape_faults()

    def _performer_faults(self) -> Iterator[PartFault]:
        if (self.unit is None) == (self.dma is None):
            yield PartFault("unit", "an intrinsic names either the unit or the dma that performs it")
            return
        for key in ("ii", "depth"):
            if self.unit is not None and key not in self.properties:
                yield PartFault(key, f"an intrinsic of a unit needs {key}")
        for key in ("ii", "depth", "max_iterations", "micro_ops"):
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
        scope = _memory_of(arg)
        if scope is None:
            yield f"must name its scope by a string, but is {arg.type}"
        elif scope == DRAM and isinstance(arg.type.memory_space, StringAttr):
            yield "is off chip, which is written as no memory space"
        elif scope == DRAM and self.unit is not None:
            yield "is off chip, where only a dma reaches"

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


def _memory_of(value: SSAValue) -> str | None:
    """The scope of a memref, "dram" where it has none; None if its memory space is no string."""
    assert isa(value.type, MemRefType)
    match value.type.memory_space:
        case NoneAttr():
            return DRAM
        case StringAttr() as space:
            return space.data
        case _:
            return None


# the machine


_PartT = TypeVar("_PartT", bound=MachinePart)


@irdl_op_definition
class TargetOp(IRDLOperation):
    """
    A machine. Its parts share one symbol table; `@dram` means off chip and is not declared.
    """

    name = _TARGET

    sym_name = prop_def(SymbolNameConstraint())
    """The name of the machine, with `_` for what a symbol cannot hold."""
    machine_name_attr = opt_prop_def(StringAttr, prop_name="machine_name")
    """The name itself, where it differs."""
    frequency = prop_def(IntegerAttr[I64])
    """In MHz."""
    sources = opt_prop_def(DictionaryAttr)
    """What the keys in the `origin` of its parts stand for: documents."""
    origin = opt_prop_def(DictionaryAttr)
    """Where the frequency comes from."""
    body = region_def("single_block")
    """Its parts."""
    traits = traits_def(SymbolOpInterface(), SymbolTable(), NoTerminator(), IsolatedFromAbove())

    assembly_format = (
        "$sym_name (`named` $machine_name^)? `frequency` $frequency (`sources` $sources^)?"
        " (`origin` $origin^)? attr-dict-with-keyword $body"
    )

    @property
    def machine_name(self) -> str:
        """The name of the machine, as in its file."""
        named = self.machine_name_attr
        return self.sym_name.data if named is None else named.data

    @property
    def frequency_mhz(self) -> int:
        return int_of(self.frequency)

    def parts(self, kind: type[_PartT]) -> tuple[_PartT, ...]:
        """The parts of one kind, in the order of their declaration."""
        # Quicker than `isinstance`, which is Python code for the classes of ops, and this is called with every op.
        return tuple(op for op in self.body.block.ops if kind in type(op).__mro__)  # pyright: ignore[reportReturnType]

    def scopes(self) -> dict[str, ScopeOp]:
        """The scopes by name, in the order of their declaration."""
        return {op.sym_name.data: op for op in self.parts(ScopeOp)}

    def buses(self) -> dict[str, BusOp]:
        """The buses by name, in the order of their declaration."""
        return {op.sym_name.data: op for op in self.parts(BusOp)}

    def units(self) -> dict[str, UnitOp]:
        """The units by name, in the order of their declaration, which breaks ties."""
        return {op.sym_name.data: op for op in self.parts(UnitOp)}

    def processor(self) -> ProcessorOp | None:
        """The CPU beside the machine: the first one, if its file says anything of it."""
        return next(iter(self.parts(ProcessorOp)), None)

    def dmas(self) -> dict[str, DmaOp]:
        """The DMA engines by name, in the order of their declaration."""
        return {op.sym_name.data: op for op in self.parts(DmaOp)}

    def intrinsics(self) -> dict[str, IntrinsicOp]:
        """The intrinsics by name, in the order of their declaration."""
        return {op.sym_name.data: op for op in self.parts(IntrinsicOp)}

    def queues(self) -> tuple[QueueOp, ...]:
        """The queues, in the order of their declaration."""
        return self.parts(QueueOp)

    def scope(self, name: str) -> ScopeOp:
        """The scope called `name`; raises UserError if the machine has none."""
        scopes = self.scopes()
        if name not in scopes:
            note = nearest_or_all(name, scopes, "its scopes")
            raise UserError(f'machine "{self.machine_name}" has no scope "{name}"', notes=[note])
        return scopes[name]

    def dma_between(self, src_scope: str, dst_scope: str) -> DmaOp | None:
        """The first DMA engine that moves from one scope to the other ("dram" = off chip), if there is one."""
        for dma in self.parts(DmaOp):
            if src_scope in dma.sources and dst_scope in dma.destinations:
                return dma
        return None

    @property
    def is_host(self) -> bool:
        """Whether it is a CPU and nothing beside it: of scopes it has registers, and no engine and no intrinsic."""
        if self.sym_name.data == HOST:
            return True
        return REGISTERS in self.scopes() and not self.parts(DmaOp) and not self.parts(IntrinsicOp)

    def peak_macs_per_cycle(self) -> Fraction:
        """The multiply-accumulates a cycle with every unit at its best intrinsic, without depth."""
        best: dict[str, Fraction] = {}
        for op in self.parts(IntrinsicOp):
            if op.unit_name is not None:
                rate = Fraction(op.macs_per_issue(), op.initiation_interval)
                best[op.unit_name] = max(rate, best.get(op.unit_name, Fraction(0)))
        return sum(best.values(), Fraction(0))

    def faults(self) -> Iterator[tuple[MachinePart, PartFault]]:
        """What is wrong between the parts: names that are taken or unknown, and parts that do not fit."""
        yield from self._name_faults()
        for scope in self.parts(ScopeOp):
            yield from ((scope, fault) for fault in self._scope_faults(scope))
        for dma in self.parts(DmaOp):
            yield from ((dma, fault) for fault in self._dma_faults(dma))
        for intrinsic in self.parts(IntrinsicOp):
            yield from ((intrinsic, fault) for fault in self._intrinsic_faults(intrinsic))
        for queue in self.queues():
            yield from ((queue, fault) for fault in self._queue_faults(queue))

    def verify_(self) -> None:
        if int_of(self.frequency) < 1:
            raise VerifyException("the frequency of a machine must be at least 1 MHz")
        for op in self.body.block.ops:
            if not isinstance(op, MachinePart):
                raise VerifyException(f"{op.name} is no part of a machine")
        for part, fault in self.faults():
            raise VerifyException("; ".join((f"{part.title}: {fault.message}", *fault.notes)))

    def _name_faults(self) -> Iterator[tuple[MachinePart, PartFault]]:
        titles: dict[str, str] = {}
        for part in self.body.block.ops:
            named = part.get_attr_or_prop("sym_name")
            if not isinstance(part, MachinePart) or not isinstance(named, StringAttr):
                continue
            name = named.data
            if name == DRAM:
                yield part, PartFault("name", f'"{DRAM}" means off chip and is not declared')
            elif name in titles:
                yield part, PartFault("name", f'the name "{name}" is taken by {titles[name]}')
            titles.setdefault(name, part.title)

    def _unknown(
        self, kind: type[MachinePart], key: str, name: str | None, *inside: str | int, dram: bool = False
    ) -> Iterator[PartFault]:
        """A fault of `key` if no part of that kind is called `name`."""
        known = [part.properties["sym_name"] for part in self.parts(kind)]
        names = [attr.data for attr in known if isinstance(attr, StringAttr) and attr.data != DRAM]
        names += [DRAM] if dram else []
        if name is not None and name not in names:
            note = nearest_or_all(name, names, "known here")
            yield PartFault(key, f'unknown {kind.KIND} "{name}"', (note,), inside)

    def _dtype_faults(self, key: str, scope: str, dtype: Attribute, *inside: str | int) -> Iterator[PartFault]:
        known = self.scopes().get(scope)
        if known is not None and known.dtypes.data and dtype not in known.dtypes.data:
            listed = ", ".join(str(each) for each in known.dtypes)
            yield PartFault(key, f'scope "{scope}" holds {listed}, not {dtype}', (), inside)

    def _scope_faults(self, scope: ScopeOp) -> Iterator[PartFault]:
        yield from self._unknown(ScopeOp, "parent", scope.parent_name, dram=True)
        scopes = self.scopes()
        chain: list[str] = []
        current = scope.sym_name.data
        while current != DRAM and current in scopes and current not in chain:
            chain.append(current)
            current = scopes[current].parent_name
        if chain and current == scope.sym_name.data:
            yield PartFault("parent", f"its parents lead back to itself: {' in '.join([*chain, current])}")
        if scope.sym_name.data == REGISTERS and not self.is_host:
            message = f'"{REGISTERS}" means those of a processor that has no engines or intrinsics beside it'
            yield PartFault("name", message, ("give the scope another name",))

    def _dma_faults(self, dma: DmaOp) -> Iterator[PartFault]:
        yield from self._unknown(UnitOp, "unit", dma.unit_name)
        yield from self._unknown(BusOp, "bus", dma.bus_name)
        for key, names in (("from", dma.sources), ("to", dma.destinations)):
            for place, name in enumerate(names):
                yield from self._unknown(ScopeOp, key, name, place, dram=True)
        if (converts := dma.converts) is not None:
            for end, dtype, names in (("from", converts[0], dma.sources), ("to", converts[1], dma.destinations)):
                for name in names:
                    yield from self._dtype_faults("convert", name, dtype, end)

    def _intrinsic_faults(self, intrinsic: IntrinsicOp) -> Iterator[PartFault]:
        yield from self._unknown(UnitOp, "unit", intrinsic.unit_name)
        yield from self._unknown(DmaOp, "dma", intrinsic.dma_name)
        dma = self.dmas().get(intrinsic.dma_name or "")
        # A machine file does not list the immediate among the operands.
        specs = [spec for spec in intrinsic.operand_specs() if spec.role != IMMEDIATE]
        for place, spec in enumerate(specs):
            yield from self._unknown(ScopeOp, "operands", spec.scope, place, "scope", dram=True)
            yield from self._dtype_faults("operands", spec.scope, spec.dtype, place, "dtype")
            if dma is None or intrinsic.unit_name is not None:
                continue
            verb, reached = ("reads", dma.sources) if spec.role == "in" else ("writes", dma.destinations)
            if spec.scope not in reached:
                message = f'operand "{spec.name}" is in "{spec.scope}", but {dma.title} {verb} {", ".join(reached)}'
                yield PartFault("operands", message, (), (place, "scope"))

    def _queue_faults(self, queue: QueueOp) -> Iterator[PartFault]:
        ends = (queue.source, queue.destination)
        for key, unit in zip(("from", "to"), ends, strict=True):
            yield from self._unknown(UnitOp, key, unit)
        first = next(each for each in self.queues() if (each.source, each.destination) == ends)
        if queue is not first:
            yield PartFault("from", "these two units are joined in this direction already")


def find_target(module: ModuleOp) -> TargetOp | None:
    """The machine that `module` is compiled for, if it holds one."""
    for op in module.body.block.ops:
        if isinstance(op, TargetOp):
            return op
    return None


Machine = Dialect("machine", [TargetOp, ScopeOp, BusOp, UnitOp, ProcessorOp, DmaOp, QueueOp, IntrinsicOp], [])
