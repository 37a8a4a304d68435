# SPDX-License-Identifier: Apache-2.0
"""The machine as a whole: its parts by name, and what is wrong between them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

from xdsl.dialects.builtin import (
    I64,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    SymbolNameConstraint,
)
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def, region_def, traits_def
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.machine.code import QUEUES, TOKENS, CodeOp, StateOp
from penstock.dialects.machine.command import spelling_faults
from penstock.dialects.machine.energy import (
    ENERGY_TABLES,
    OPERATIONS,
    READ,
    TRANSFER,
    WRITE,
    EnergyOp,
    operations_of,
)
from penstock.dialects.machine.intrinsic import IntrinsicOp
from penstock.dialects.machine.part import DRAM, HOST, IMMEDIATE, REGISTERS, TARGET, MachinePart, PartFault, int_of
from penstock.dialects.machine.parts import PLACED, BusOp, DmaOp, MemoryOp, ProcessorOp, QueueOp, ScopeOp, UnitOp
from penstock.dialects.machine.spelling import ID, SpelledPart

_PartT = TypeVar("_PartT", bound=MachinePart)


@irdl_op_definition
class TargetOp(IRDLOperation):
    """
    A machine. Its parts share one symbol table; `@dram` means off chip and is not declared.
    """

    name = TARGET

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

    def memories(self) -> tuple[MemoryOp, ...]:
        """The memories that programs without an operating system are placed in, in the order of their declaration."""
        return tuple(self.parts(MemoryOp))

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

    def states(self) -> dict[str, StateOp]:
        """The states that commands depend on, by name."""
        return {op.sym_name.data: op for op in self.parts(StateOp)}

    def code(self) -> CodeOp | None:
        """What programs for the real machine are written with; None where nothing says."""
        return next(iter(self.parts(CodeOp)), None)

    def energy(self) -> EnergyOp | None:
        """What the machine takes of energy; None where nothing says."""
        return next(iter(self.parts(EnergyOp)), None)

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
        """Whether it is a CPU and nothing beside it: of scopes it has registers at most, and no engine."""
        return self.sym_name.data == HOST or (not self.parts(DmaOp) and set(self.scopes()) <= {REGISTERS})

    def peak_macs_per_cycle(self) -> Fraction:
        """The multiply-accumulates a cycle with every unit at its best intrinsic, without depth."""
        best: dict[str, Fraction] = {}
        for op in self.parts(IntrinsicOp):
            if op.unit_name is not None and op.ii is not None:
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
        yield from self._memory_faults()
        yield from self._code_faults()
        yield from self._energy_faults()

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
        if name is None or (dram and name == DRAM):
            return
        known = [part.properties["sym_name"] for part in self.parts(kind)]
        names = [attr.data for attr in known if isinstance(attr, StringAttr) and attr.data != DRAM]
        names += [DRAM] if dram else []
        if name not in names:
            note = nearest_or_all(name, names, "known here")
            yield PartFault(key, f'unknown {kind.KIND} "{name}"', (note,), inside)

    def _memory_faults(self) -> Iterator[tuple[MachinePart, PartFault]]:
        ordered = sorted(self.memories(), key=lambda each: each.begin)
        for before, after in pairwise(ordered):
            if before.begin + before.bytes > after.begin:
                yield (
                    after,
                    PartFault("address", f"overlaps {before.title}, which ends at {before.begin + before.bytes:#x}"),
                )
        for what in PLACED if ordered else ():
            holders = [each for each in self.memories() if any(what == held.data for held in each.holds)]
            if len(holders) > 1:
                yield holders[1], PartFault("holds", f"{holders[0].title} holds {what} already")
            if not holders:
                yield ordered[0], PartFault("holds", f"no memory holds {what}")

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
            message = f'"{REGISTERS}" means those of a processor that has no engines beside it'
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
        if intrinsic.emit is None and self.is_host:
            yield PartFault("emit", "an intrinsic of a host needs emit")
        if intrinsic.efficiency is not None and not (self.is_host and intrinsic.is_call):
            message = "efficiency has no meaning but on a host, of what reads and writes off chip"
            yield PartFault("efficiency", message)
        dma = self.dmas().get(intrinsic.dma_name or "")
        # A machine file does not list the immediate among the operands.
        specs = [spec for spec in intrinsic.operand_specs() if spec.role != IMMEDIATE]
        for place, spec in enumerate(specs):
            yield from self._unknown(ScopeOp, "operands", spec.scope, place, "scope", dram=True)
            yield from self._dtype_faults("operands", spec.scope, spec.dtype, place, "dtype")
            if spec.scope == DRAM and intrinsic.unit_name is not None and not self.is_host:
                # A processor loads its operands itself.
                message = f'operand "{spec.name}" is off chip, where only a dma reaches'
                yield PartFault("operands", message, (), (place,))
            if dma is None or intrinsic.unit_name is not None:
                continue
            verb, reached = ("reads", dma.sources) if spec.role == "in" else ("writes", dma.destinations)
            if spec.scope not in reached:
                message = f'operand "{spec.name}" is in "{spec.scope}", but {dma.title} {verb} {", ".join(reached)}'
                yield PartFault("operands", message, (), (place, "scope"))

    def _code_faults(self) -> Iterator[tuple[MachinePart, PartFault]]:
        """What is wrong with how commands are spelled."""
        codes = self.parts(CodeOp)
        yield from ((code, PartFault("order", "a machine has one [code]")) for code in codes[1:])
        spelled = [part for part in self.parts(SpelledPart) if part.emit is not None]
        if spelled and not codes and not self.is_host:
            yield spelled[0], PartFault("emit", "the machine has no [code], which says what is around its commands")
        for part in spelled:
            yield from ((part, fault) for fault in spelling_faults(part, self.scopes(), self.states()))
            for place, name in enumerate(part.features if not self.is_host else ()):
                message = f'requires: "{name}" is a feature of a CPU, and the machine is none'
                yield part, PartFault("requires", message, (), (place,))
            if part.runs_on and codes and codes[0].order.data != TOKENS:
                message = f'emit: {{{ID}}} has no meaning unless [code] has order = "{TOKENS}"'
                yield part, PartFault("emit", message)
        for queue in self.queues() if codes and codes[0].order.data == QUEUES else ():
            if queue.push is None or queue.pop is None:
                yield queue, PartFault("push", "commands are ordered by queues, and nothing spells push and pop")
        for code in codes[:1]:
            if code.barrier is None and not self.is_host:
                yield code, PartFault("barrier", "nothing says how the processor waits until commands are complete")
            if self.is_host and code.order.data != "program":
                yield code, PartFault("order", 'commands of a host are in the order of the "program"')

    def _energy_faults(self) -> Iterator[tuple[MachinePart, PartFault]]:
        """What the commands of the machine do, and nothing says what energy it takes; and names that are unknown."""
        energies = self.parts(EnergyOp)
        yield from ((each, PartFault(READ, "a machine has one [energy]")) for each in energies[1:])
        for energy in energies[:1]:
            if self.is_host:
                yield energy, PartFault(READ, "the time of a host is not simulated, and so its energy is not known")
                return
            # An engine without a bus is its own.
            carriers = [dma.bus_name or name for name, dma in self.dmas().items()]
            memories = [DRAM, *self.scopes()]
            users: dict[tuple[str, str], str] = {}
            for intrinsic in self.parts(IntrinsicOp):
                for what in operations_of(intrinsic.generic.body.block):
                    users.setdefault(what, intrinsic.title)
            held = [str(dtype) for scope in self.parts(ScopeOp) for dtype in scope.dtypes]
            for table in ENERGY_TABLES:
                entries = energy.table(table).data
                types = [type for each, type in users if each == table]
                needed = {READ: memories, WRITE: memories, TRANSFER: carriers}.get(table, types)
                known = dict.fromkeys(
                    [*needed, *(held if table in OPERATIONS else self.buses() if table == TRANSFER else ())]
                )
                for name in dict.fromkeys(needed):
                    if name not in entries:
                        user = users.get((table, name))
                        notes = () if user is None else (f"{user} needs it",)
                        yield energy, PartFault(table, f'{table} has no entry for "{name}"', notes)
                for name in entries:
                    if name not in known:
                        note = nearest_or_all(name, known, "known here")
                        kind = {READ: "scope", WRITE: "scope", TRANSFER: "bus, or engine without one,"}
                        message = f'unknown {kind.get(table, "element type")} "{name}"'
                        yield energy, PartFault(table, message, (note,), (name,))

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
