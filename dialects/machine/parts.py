# SPDX-License-Identifier: Apache-2.0
"""The memories, buses, units, processors, DMA engines and queues of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import ClassVar

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute, Operation
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def

from penstock.dialects.machine.part import (
    CONVERT_RULES,
    DRAM,
    FULL_POLICIES,
    IntegerProperty,
    MachinePart,
    NamedPart,
    PartFault,
    int_of,
    ints_of,
    name_of,
    names_of,
    rate_faults,
)
from penstock.dialects.machine.spelling import (
    COLUMNS,
    LAYOUTS,
    SPELLING,
    SpelledPart,
    template_faults,
    template_of,
    unknown_fields,
)

FORK = 10_000
"""Cycles that it takes to start threads on a CPU of which nothing is said."""


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
    interleave = opt_prop_def(IntegerAttr[I64])
    """Bytes after which addresses go on in the next bank, and after the last one in the first; if it is absent each
    bank is a range of addresses."""
    conflict = opt_prop_def(IntegerAttr[I64])
    """Cycles that each application of an intrinsic takes longer for every two of its operands that share a bank; none
    if it is absent."""
    dtypes = prop_def(ArrayAttr)
    """The element types that it holds."""
    rate = opt_prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles] of its on-chip port."""
    parent_scope = opt_prop_def(FlatSymbolRefAttrConstr, prop_name="parent")
    """The scope that it lies below and is filled from; `dram`, off chip, if it is absent."""
    address = opt_prop_def(StringAttr)
    """How commands spell an address in it: a template over `offset`, in bytes, and `row`, in granules. With `offset`
    alone a command may begin at any element of a row."""
    layout = opt_prop_def(StringAttr)
    """How the granules of a buffer lie in the addresses that commands spell: by `rows`, the default, or by `columns`,
    where all rows of the first granule come before those of the next."""

    assembly_format = (
        "$sym_name `size` $size `granule` $granule (`banks` $banks^)? (`interleave` $interleave^)?"
        " (`conflict` $conflict^)? `dtypes` $dtypes (`rate` $rate^)? (`parent` $parent^)? (`address` $address^)?"
        " (`layout` $layout^)? (`origin` $origin^)? attr-dict"
    )

    size_bytes = IntegerProperty("size")
    granule_bytes = IntegerProperty("granule")
    bank_count = IntegerProperty("banks", 1)
    conflict_cycles = IntegerProperty("conflict", 0)

    @property
    def bank_width(self) -> int:
        """Bytes in a row that are in one bank."""
        return self.size_bytes // self.bank_count if self.interleave is None else self.interleave.value.data

    def banks_of(self, start: int, end: int) -> int:
        """The banks of some bytes, as a set: one bit a bank."""
        first, last = start // self.bank_width, max(end - 1, start) // self.bank_width
        if last - first + 1 >= self.bank_count:
            return (1 << self.bank_count) - 1
        return sum({1 << each % self.bank_count for each in range(first, last + 1)})

    @property
    def parent_name(self) -> str:
        """The scope this one is filled from; off chip if it names none."""
        return name_of(self.parent_scope) or DRAM

    @property
    def lies_by_columns(self) -> bool:
        """Whether the granules of a buffer lie column by column."""
        return self.layout is not None and self.layout.data == COLUMNS

    @property
    def has_bytes_for_addresses(self) -> bool:
        """Whether a command may begin inside a granule."""
        template = template_of(self.address)
        return template is not None and template.names == frozenset(("offset",)) and not self.lies_by_columns

    def own_faults(self) -> Iterator[PartFault]:
        yield from rate_faults(self.rate)
        yield from template_faults("address", self.address)
        if (template := template_of(self.address)) is not None:
            yield from unknown_fields("address", template, ("offset", "row"))
            sizes = {"offset": self.size_bytes, "row": -(-self.size_bytes // max(1, self.granule_bytes))}
            for field in template.fields:
                if field.bits is not None and (sizes.get(field.name, 1) - 1).bit_length() > field.bits:
                    message = f"address: {field.name} has {field.bits} bits, too few for {sizes[field.name]:,}"
                    yield PartFault("address", message, (), (), field.column)
        if self.layout is not None and self.layout.data not in LAYOUTS:
            yield PartFault("layout", f"layout must be one of {', '.join(LAYOUTS)}")
        if self.size_bytes > 0 and self.granule_bytes > 0 and self.size_bytes % self.granule_bytes:
            yield PartFault(
                "size",
                f"size {self.size_bytes} is not a multiple of the granule, {self.granule_bytes}",
            )
        banks = self.bank_count
        if banks < 1 or (self.interleave is None and self.size_bytes % banks):
            yield PartFault("banks", f"size {self.size_bytes} is not {banks} banks of as many bytes")
        if self.interleave is not None and (self.bank_width < 1 or self.size_bytes % (banks * self.bank_width)):
            message = f"size {self.size_bytes} is no multiple of {banks} banks times interleave, {self.bank_width}"
            yield PartFault("interleave", message)
        if self.conflict_cycles and banks < 2:
            yield PartFault("conflict", "conflict is of banks: the scope has one")
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


CODE, WEIGHTS, DATA = "code", "weights", "data"
PLACED = (CODE, WEIGHTS, DATA)
"""What the linker places of a program without an operating system."""


@irdl_op_definition
class MemoryOp(NamedPart):
    """
    A memory in the address space of the processor, in which the linker places parts of a program without an operating
    system.
    """

    name = "machine.memory"
    KIND: ClassVar[str] = "memory"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = ("address",)

    address = prop_def(IntegerAttr[I64])
    """Where it begins."""
    size = prop_def(IntegerAttr[I64])
    """Bytes."""
    holds = prop_def(ArrayAttr[StringAttr])
    """What lies in it: `code`, with constants, `weights` and `data`, which is what is written: arena, variables and
    stack. Code and weights keep their contents, as flash does."""

    assembly_format = "$sym_name `address` $address `size` $size `holds` $holds (`origin` $origin^)? attr-dict"

    @property
    def begin(self) -> int:
        """Where it begins."""
        return int_of(self.address)

    @property
    def bytes(self) -> int:
        """Its size."""
        return int_of(self.size)

    def own_faults(self) -> Iterator[PartFault]:
        for each in self.holds:
            if each.data not in PLACED:
                yield PartFault("holds", f'holds must be some of {", ".join(PLACED)}, but has "{each.data}"')


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

    `ops`, `costs` and `rate` serve to weigh on which device a kernel runs, and to say how long those of the host take;
    the others say how its vectors are best used. Its vector registers are the scope `registers` of the machine.
    """

    name = "machine.processor"
    KIND: ClassVar[str] = "processor"

    ops = prop_def(DenseArrayBase.constr(i64))
    """[operations, cycles]: scalar operations, loads and stores included, in so many cycles of the machine."""
    rate = prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles]: bytes from or to off chip in so many cycles of the machine."""
    costs = opt_prop_def(DictionaryAttr)
    """By the name of an op, such as `arith.divf`, as how many operations it counts; as one where nothing is said."""
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
    ways = opt_prop_def(IntegerAttr[I64])
    """Lines of the first cache that share a set; if it is absent, a line may take the room of any other."""
    misses = opt_prop_def(DenseArrayBase.constr(i64))
    """Cycles that a line takes beside what is computed meanwhile: from the second cache, and from each one after it."""
    pair_loads = opt_prop_def(IntegerAttr[I64])
    """Loads that every second element of two vectors takes the time of, with what sorts them; 2 if it is absent."""
    exposed = opt_prop_def(DenseArrayBase.constr(i64))
    """[part, whole]: the share of the shorter of multiply-adds and loads that the longer does not hide."""
    step = opt_prop_def(DenseArrayBase.constr(i64))
    """[cycles, steps]: what the loop over the products of a sum takes beside them."""
    tile = opt_prop_def(DenseArrayBase.constr(i64))
    """[cycles, cycles]: what a tile of sums in registers takes beside them, and each of its vectors."""
    row_overhead = opt_prop_def(IntegerAttr[I64])
    """Cycles for each run of adjacent elements that is copied, besides its loads and stores."""
    packing = opt_prop_def(DenseArrayBase.constr(i64))
    """[more, own]: by how much work may grow by padding to have packed operands, or lines of the first cache."""
    fork = opt_prop_def(IntegerAttr[I64])
    """Cycles that it takes to start threads that wait, and to wait for the last of them."""

    assembly_format = (
        "$sym_name `ops` $ops `rate` $rate (`costs` $costs^)? (`vector` $vector^)? (`fma` $fma^)? (`loads` $loads^)?"
        " (`latency` $latency^)? (`caches` $caches^)? (`ways` $ways^)? (`misses` $misses^)?"
        " (`pair_loads` $pair_loads^)? (`exposed` $exposed^)? (`step` $step^)? (`tile` $tile^)?"
        " (`row_overhead` $row_overhead^)? (`packing` $packing^)? (`fork` $fork^)? (`origin` $origin^)? attr-dict"
    )

    vector_bytes = IntegerProperty("vector")
    latency_cycles = IntegerProperty("latency", 1)
    way_count = IntegerProperty("ways")
    loads_of_pair = IntegerProperty("pair_loads", 2)
    row_overhead_cycles = IntegerProperty("row_overhead")
    fork_cycles = IntegerProperty("fork", FORK)

    @property
    def cycles_per_op(self) -> Fraction:
        """Cycles of the machine for one scalar operation."""
        operations, cycles = ints_of(self.ops)
        return Fraction(cycles, operations)

    @property
    def cycles_per_byte(self) -> Fraction:
        """Cycles of the machine for one byte from or to off chip."""
        size, cycles = ints_of(self.rate)
        return Fraction(cycles, size)

    def operations_of(self, op: Operation) -> int:
        """As how many scalar operations an op counts."""
        cost = None if self.costs is None else self.costs.data.get(op.name)
        return cost.value.data if isinstance(cost, IntegerAttr) else 1

    @property
    def fmas_per_cycle(self) -> Fraction:
        """Multiply-adds of whole vectors that start in a cycle; 0 if it has none."""
        return _fraction(self.fma)

    @property
    def loads_per_cycle(self) -> Fraction:
        """Loads of whole vectors that start in a cycle; one where nothing is said."""
        return _fraction(self.loads, 1)

    @property
    def exposed_share(self) -> Fraction:
        """What is not hidden of the shorter of multiply-adds and loads; nothing where nothing is said."""
        return _fraction(self.exposed)

    @property
    def cycles_per_step(self) -> Fraction:
        """What the loop over the products of a sum takes for each of them."""
        return _fraction(self.step)

    @property
    def tile_cycles(self) -> tuple[int, int]:
        """What a tile of sums takes beside them, and each of its vectors."""
        if self.tile is None:
            return 0, 0
        once, each = ints_of(self.tile)
        return once, each

    @property
    def packing_worth(self) -> Fraction:
        """How many times its own work, or lines, a product may take for packed operands, or not to pack them."""
        return _fraction(self.packing, 1)

    def own_faults(self) -> Iterator[PartFault]:
        yield from rate_faults(self.rate)
        for name, cost in self.costs.data.items() if self.costs is not None else ():
            if not isinstance(cost, IntegerAttr) or cost.value.data < 1:
                yield PartFault(
                    "costs", f"{name} must count as a whole number of operations of at least 1", (), (name,)
                )
        pairs = {
            "ops": (self.ops, "[operations, cycles]"),
            "fma": (self.fma, "[instructions, cycles]"),
            "loads": (self.loads, "[instructions, cycles]"),
            "exposed": (self.exposed, "[part, whole]"),
            "step": (self.step, "[cycles, steps]"),
            "tile": (self.tile, "[cycles, cycles]"),
            "packing": (self.packing, "[more, own]"),
        }
        for key, (pair, words) in pairs.items():
            if pair is not None and len(pair) != 2:
                yield PartFault(key, f"{key} must be {words}, but has {len(pair)} numbers")
        if self.vector is not None:
            if self.vector_bytes < 8 or self.vector_bytes & (self.vector_bytes - 1):
                yield PartFault("vector", f"vector must be a power of two of at least 8, but is {self.vector_bytes}")
            for key, numbers in (("fma", self.fma), ("caches", self.caches)):
                if not numbers:
                    yield PartFault("vector", f"a processor with vectors must say its {key}")


def _pair(pair: DenseArrayBase[I64] | None) -> tuple[int, int] | None:
    if pair is None:
        return None
    first, second = ints_of(pair)
    return first, second


def _fraction(pair: DenseArrayBase[I64] | None, default: int = 0) -> Fraction:
    return Fraction(default) if pair is None else Fraction(*ints_of(pair))


@irdl_op_definition
class DmaOp(SpelledPart):
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
    rate = opt_prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles] of an engine that is slower than its bus, which it occupies meanwhile."""
    burst = opt_prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles]: each row is cut into bursts of so many bytes, each of which takes so many cycles more."""
    padding = opt_prop_def(DenseArrayBase.constr(i64))
    """[bytes, cycles] at which it writes padding, while it has its bus; padding takes no time if it is absent."""
    outstanding = prop_def(IntegerAttr[I64])
    """Transfers that it can have in flight."""
    convert = opt_prop_def(DictionaryAttr)
    """The conversion of elements on the way: `{ from, to, rule }`, two element types and `truncate` or `saturate`."""

    assembly_format = (
        "$sym_name `unit` $unit `from` $from `to` $to (`bus` $bus^)? `dims` $dims"
        " (`max_count` $max_count^)? (`max_stride` $max_stride^)? (`pad_max` $pad_max^)?"
        " (`align` $align^)? `latency` $latency `row_overhead` $row_overhead"
        " (`rate` $rate^)? (`burst` $burst^)? (`padding` $padding^)?"
        f" `outstanding` $outstanding (`convert` $convert^)? {SPELLING} (`origin` $origin^)? attr-dict"
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

    @property
    def own_rate(self) -> tuple[int, int] | None:
        """Its (bytes, cycles), where it is slower than its bus."""
        return _pair(self.rate)

    @property
    def burst_cost(self) -> tuple[int, int] | None:
        """The bytes of a burst, and the cycles that it takes besides them; None where a row is not cut."""
        return _pair(self.burst)

    @property
    def padding_rate(self) -> tuple[int, int] | None:
        """The (bytes, cycles) at which it pads; None where that takes no time."""
        return _pair(self.padding)

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
        for key, pair in (("rate", self.rate), ("burst", self.burst), ("padding", self.padding)):
            yield from rate_faults(pair, key)
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
        yield from self.spelling_faults()


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
    push = opt_prop_def(StringAttr)
    """How a push is written in C."""
    pop = opt_prop_def(StringAttr)
    """How a pop is written in C."""

    assembly_format = (
        "`from` $from `to` $to `capacity` $capacity `on_full` $on_full (`initial` $initial^)?"
        " (`push` $push^)? (`pop` $pop^)? (`origin` $origin^)? attr-dict"
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
        for key, attr in (("push", self.push), ("pop", self.pop)):
            yield from template_faults(key, attr)
            yield from unknown_fields(key, template_of(attr), ())
