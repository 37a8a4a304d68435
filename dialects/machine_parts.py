"""
The parts of a machine that compute nothing, scopes, buses, units, DMA engines and queues, and what all parts share.

The keys of an operation are those of its table in a machine file, so nothing is lost on the way into the IR.
What a part demands of its own properties is said once, in `faults`; the verifier raises the first of them, and the
reader of machine files reports all of them. What parts demand of each other is said in `machine.target`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, cast

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.traits import SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

DRAM = "dram"
"""The name of everything off chip; no scope may be called so, and its memrefs have no memory space."""

TARGET_NAME = "machine.target"


class Fault(NamedTuple):
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


class MachinePart(IRDLOperation):
    """
    A part of a `machine.target`.

    `origin` says where its numbers come from: `all` for the whole table, else the number's own key. Each value is
    a key of the target's `sources`, or `"assumed"`; a pair adds the arithmetic by which the number was derived.
    """

    KIND: ClassVar[str]
    """The word for such a part, as in a machine file."""
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ()
    """The keys whose numbers may be zero; all others are at least one."""

    origin = opt_prop_def(DictionaryAttr)

    @property
    def title(self) -> str:
        """The part in a message: its kind and its name."""
        name = self.properties.get("sym_name")
        return f'{self.KIND} "{name.data}"' if isinstance(name, StringAttr) else self.KIND

    def own_faults(self) -> Iterator[Fault]:
        """What is wrong with this part beyond the range of its numbers."""
        return iter(())

    def faults(self) -> Iterator[Fault]:
        """What is wrong with this part, taken alone."""
        for key, attr in self.properties.items():
            yield from number_faults(key, attr, 0 if key in self.AT_LEAST_ZERO else 1)
        yield from self.own_faults()

    def verify_(self) -> None:
        parent = self.parent_op()
        if parent is not None and parent.name != TARGET_NAME:
            raise VerifyException(f"{self.title} must be directly in a {TARGET_NAME}")
        for fault in self.faults():
            raise VerifyException(f"{self.title}: {fault.message}")


def number_faults(key: str, attr: Attribute, least: int) -> Iterator[Fault]:
    """The numbers of a property that are below `least`."""
    for value in numbers_of(attr):
        if value < least:
            yield Fault(key, f"{key} must be at least {least}, but is {value}")


def rate_faults(rate: DenseArrayBase[I64] | None) -> Iterator[Fault]:
    """A rate is a fraction [bytes, cycles]."""
    if rate is not None and len(rate) != 2:
        yield Fault("rate", f"rate must be [bytes, cycles], but has {len(rate)} numbers")


CONVERT_RULES = ("truncate", "saturate")
FULL_POLICIES = ("error", "block")


@irdl_op_definition
class ScopeOp(MachinePart):
    """
    A memory of the machine that software manages: `size` bytes in entries of `granule` bytes.

    Offsets and sizes in it are multiples of the granule. `rate` is the fraction [bytes, cycles] of its on-chip
    port, `parent` the scope (or `@dram`) it is filled from. A memref lives in it by naming it:
    `memref<16x32xf32, "spad">`.
    """

    name = "machine.scope"
    KIND: ClassVar[str] = "scope"

    sym_name = prop_def(SymbolNameConstraint())
    size = prop_def(IntegerAttr[I64])
    granule = prop_def(IntegerAttr[I64])
    banks = opt_prop_def(IntegerAttr[I64])
    dtypes = prop_def(ArrayAttr)
    rate = opt_prop_def(DenseArrayBase.constr(i64))
    parent_scope = opt_prop_def(FlatSymbolRefAttrConstr, prop_name="parent")
    traits = traits_def(SymbolOpInterface())

    assembly_format = (
        "$sym_name `size` $size `granule` $granule (`banks` $banks^)? `dtypes` $dtypes"
        " (`rate` $rate^)? (`parent` $parent^)? (`origin` $origin^)? attr-dict"
    )

    @property
    def size_bytes(self) -> int:
        return int_of(self.size)

    @property
    def granule_bytes(self) -> int:
        return int_of(self.granule)

    @property
    def bank_count(self) -> int:
        return int_of(self.banks, 1)

    @property
    def parent_name(self) -> str:
        """The scope this one is filled from; off chip if it names none."""
        return name_of(self.parent_scope) or DRAM

    def own_faults(self) -> Iterator[Fault]:
        yield from rate_faults(self.rate)
        if self.size_bytes > 0 and self.granule_bytes > 0 and self.size_bytes % self.granule_bytes:
            yield Fault(
                "size",
                f"size {self.size_bytes} is not a multiple of the granule, {self.granule_bytes}",
            )
        if not self.dtypes.data:
            yield Fault("dtypes", "dtypes must name at least one element type")


@irdl_op_definition
class BusOp(MachinePart):
    """A path that one transfer at a time occupies, moving `rate` = [bytes, cycles], an exact fraction."""

    name = "machine.bus"
    KIND: ClassVar[str] = "bus"

    sym_name = prop_def(SymbolNameConstraint())
    rate = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(SymbolOpInterface())

    assembly_format = "$sym_name `rate` $rate (`origin` $origin^)? attr-dict"

    @property
    def bytes_per_cycle(self) -> tuple[int, int]:
        """The rate as (bytes, cycles)."""
        rate_bytes, rate_cycles = ints_of(self.rate)
        return rate_bytes, rate_cycles

    def own_faults(self) -> Iterator[Fault]:
        yield from rate_faults(self.rate)


@irdl_op_definition
class UnitOp(MachinePart):
    """An in-order stream of commands. The order of units in the target breaks ties between them."""

    name = "machine.unit"
    KIND: ClassVar[str] = "unit"

    sym_name = prop_def(SymbolNameConstraint())
    traits = traits_def(SymbolOpInterface())

    assembly_format = "$sym_name (`origin` $origin^)? attr-dict"


@irdl_op_definition
class ProcessorOp(MachinePart):
    """
    A CPU beside the machine, on the same off-chip memory, which runs the kernels that no unit does.

    In cycles of the machine: it computes `ops` = [operations, cycles] of scalar operations, loads and stores
    included, and moves `rate` = [bytes, cycles]. Both serve to weigh a kernel's devices, and measure nothing.
    """

    name = "machine.processor"
    KIND: ClassVar[str] = "processor"

    sym_name = prop_def(SymbolNameConstraint())
    ops = prop_def(DenseArrayBase.constr(i64))
    rate = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(SymbolOpInterface())

    assembly_format = "$sym_name `ops` $ops `rate` $rate (`origin` $origin^)? attr-dict"

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

    def own_faults(self) -> Iterator[Fault]:
        yield from rate_faults(self.rate)
        if len(self.ops) != 2:
            yield Fault("ops", f"ops must be [operations, cycles], but has {len(self.ops)} numbers")


@irdl_op_definition
class DmaOp(MachinePart):
    """
    An engine that moves boxes from any scope of `from` to any scope of `to`; its commands run on `unit`.

    `dims`: dimensions of a descriptor. `max_count`: the largest count of each, outermost first, in rows and then
    entries. `max_stride`: in entries. `pad_max`: entries, or rows, of padding written on a side. `align`: where a
    buffer off chip begins is a multiple of so many bytes. `latency`: cycles from start to the request for the bus.
    `row_overhead`: cycles a row. `outstanding`: transfers in flight. `convert`: the element type and rule applied on
    the way. A limit that is absent is none; without a `bus` a transfer takes its row overheads only.
    """

    name = "machine.dma"
    KIND: ClassVar[str] = "dma"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("latency", "row_overhead", "pad_max")

    sym_name = prop_def(SymbolNameConstraint())
    unit = prop_def(FlatSymbolRefAttrConstr)
    from_scopes = prop_def(ArrayAttr[SymbolRefAttr], prop_name="from")
    to_scopes = prop_def(ArrayAttr[SymbolRefAttr], prop_name="to")
    bus = opt_prop_def(FlatSymbolRefAttrConstr)
    dims = prop_def(IntegerAttr[I64])
    max_count = opt_prop_def(DenseArrayBase.constr(i64))
    max_stride = opt_prop_def(IntegerAttr[I64])
    pad_max = opt_prop_def(IntegerAttr[I64])
    align = opt_prop_def(IntegerAttr[I64])
    latency = prop_def(IntegerAttr[I64])
    row_overhead = prop_def(IntegerAttr[I64])
    outstanding = prop_def(IntegerAttr[I64])
    convert = opt_prop_def(DictionaryAttr)
    traits = traits_def(SymbolOpInterface())

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

    @property
    def dim_count(self) -> int:
        return int_of(self.dims)

    @property
    def max_counts(self) -> tuple[int, ...]:
        """The largest count of each dimension, outermost first; empty if there is no limit."""
        return ints_of(self.max_count)

    @property
    def stride_limit(self) -> int | None:
        """The largest stride, in entries; None if there is no limit."""
        return None if self.max_stride is None else int_of(self.max_stride)

    @property
    def pad_limit(self) -> int:
        """The entries of padding it can write on a side."""
        return int_of(self.pad_max)

    @property
    def alignment(self) -> int:
        """What the place of a buffer off chip must be a multiple of, in bytes."""
        return int_of(self.align, 1)

    @property
    def latency_cycles(self) -> int:
        return int_of(self.latency)

    @property
    def row_overhead_cycles(self) -> int:
        return int_of(self.row_overhead)

    @property
    def outstanding_limit(self) -> int:
        """The transfers it can have in flight."""
        return int_of(self.outstanding)

    @property
    def converts(self) -> tuple[Attribute, Attribute, str] | None:
        """(element type read, element type written, rule), or None for an engine that moves bytes as they are."""
        if self.convert is None:
            return None
        data = self.convert.data
        rule = data["rule"]
        assert isinstance(rule, StringAttr)
        return data["from"], data["to"], rule.data

    def own_faults(self) -> Iterator[Fault]:
        for key, names in (("from", self.sources), ("to", self.destinations)):
            if not names:
                yield Fault(key, f'{key} must name at least one scope, or "{DRAM}"')
        for scope in self.sources:
            if scope in self.destinations:
                yield Fault("to", f'"{scope}" cannot be both read and written by one engine')
        if self.max_count is not None and len(self.max_count) != self.dim_count:
            yield Fault(
                "max_count",
                f"max_count has {len(self.max_count)} numbers, but descriptors have {self.dim_count} dims",
            )
        if self.convert is not None:
            yield from _convert_faults(self.convert)


def _convert_faults(convert: DictionaryAttr) -> Iterator[Fault]:
    if set(convert.data) != {"from", "to", "rule"}:
        yield Fault("convert", "convert must have exactly the keys from, to and rule")
        return
    rule = convert.data["rule"]
    if not isinstance(rule, StringAttr) or rule.data not in CONVERT_RULES:
        yield Fault("convert", f"the rule of convert must be one of {', '.join(CONVERT_RULES)}")


@irdl_op_definition
class QueueOp(MachinePart):
    """
    A queue of dependence tokens from unit `from` to unit `to`, which holds at most `capacity`, and `initial` at time 0.

    A push into a full queue is an error, or blocks the pushing unit, as `on_full` says.
    """

    name = "machine.queue"
    KIND: ClassVar[str] = "queue"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("initial",)

    from_unit = prop_def(FlatSymbolRefAttrConstr, prop_name="from")
    to_unit = prop_def(FlatSymbolRefAttrConstr, prop_name="to")
    capacity = prop_def(IntegerAttr[I64])
    on_full = prop_def(StringAttr)
    initial = opt_prop_def(IntegerAttr[I64])

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

    @property
    def capacity_tokens(self) -> int:
        return int_of(self.capacity)

    @property
    def initial_tokens(self) -> int:
        return int_of(self.initial)

    @property
    def blocks(self) -> bool:
        """Whether a push into the full queue blocks its unit; otherwise it is an error."""
        return self.on_full.data == "block"

    def own_faults(self) -> Iterator[Fault]:
        if self.on_full.data not in FULL_POLICIES:
            yield Fault("on_full", f"on_full must be one of {', '.join(FULL_POLICIES)}")
        if self.initial_tokens > self.capacity_tokens:
            yield Fault(
                "initial",
                f"initial {self.initial_tokens} exceeds the capacity, {self.capacity_tokens}",
            )
        if self.source == self.destination:
            yield Fault("to", "a queue must join two different units")
