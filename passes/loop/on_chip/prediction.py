# SPDX-License-Identifier: Apache-2.0
"""What a decision comes to, in bytes and in words, and where it is written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, MemRefType, ModuleOp, StringAttr, i64
from xdsl.ir import SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.mem import RingOp
from penstock.passes.analysis.kernels import ENTRY
from penstock.passes.analysis.memory.liveness import Allocation
from penstock.passes.analysis.memory.memory_problems import scope_of_allocation, size_in_bytes
from penstock.passes.loop.on_chip.decision import Decision
from penstock.passes.loop.on_chip.places import OnChipLayout
from penstock.passes.loop.on_chip.program import ProgramUse, Site, TensorUse

PREDICTED = "predicted_traffic"
"""The attribute of `@main` with the bytes that its kernels move over the chip's edge in one run."""

REMARKS = "on_chip_allocation"
"""The attribute of `@main` that says, for people, which buffers stay on chip, and why each of the others does not."""


_NUMBERS = ("bytes_in", "bytes_out", "if_streamed")


@dataclass(frozen=True)
class Prediction:
    """Bytes that DMA engines move over the chip's edge in one run of `@main`."""

    bytes_in: int
    """From off chip."""
    bytes_out: int
    """To off chip."""
    if_streamed: int
    """What they move, both ways, where no tensor stays on chip."""
    strategy: str
    """The strategy that decided what stays."""

    @property
    def total(self) -> int:
        """Both ways."""
        return self.bytes_in + self.bytes_out


def write_down(module: ModuleOp, prediction: Prediction, remarks: Sequence[str]) -> None:
    """Put both into attributes of `@main`."""
    main = _main(module)
    assert main is not None
    numbers = {name: IntegerAttr(getattr(prediction, name), i64) for name in _NUMBERS}
    main.attributes[PREDICTED] = DictionaryAttr({"strategy": StringAttr(prediction.strategy), **numbers})
    if remarks:
        main.attributes[REMARKS] = ArrayAttr([StringAttr(remark) for remark in remarks])


def predicted_traffic(module: ModuleOp) -> Prediction | None:
    """What `mem-promote` predicted for a module; None if it has not run, or there are no kernels to speak of."""
    main = _main(module)
    found = None if main is None else main.attributes.get(PREDICTED)
    if not isinstance(found, DictionaryAttr):
        return None
    numbers = [found.data.get(name) for name in _NUMBERS]
    values = [number.value.data for number in numbers if isinstance(number, IntegerAttr)]
    strategy = found.data.get("strategy")
    if len(values) < 3 or not isinstance(strategy, StringAttr):
        return None
    return Prediction(values[0], values[1], values[2], strategy.data)


def on_chip_remarks(module: ModuleOp) -> list[str]:
    """What `mem-promote` said about each tensor of a module."""
    main = _main(module)
    found = None if main is None else main.attributes.get(REMARKS)
    if not isa(found, ArrayAttr[StringAttr]):
        return []
    return [remark.data for remark in found]


def _main(module: ModuleOp) -> func.FuncOp | None:
    found = (op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == ENTRY)
    return next(found, None)


def remarks(program: ProgramUse, decisions: Sequence[Decision], offered: Mapping[str, OnChipLayout]) -> Iterator[str]:
    """
    A line for each tensor that stays on chip at some time, for each that is made and read by the machine and never
    does, and for each other buffer that stays off chip. `offered` is the place of each tensor in the scope that would
    have saved most.
    """
    said: set[SSAValue] = set()
    for root, line in _tensors(program, decisions, offered):
        said.add(root)
        yield line
    for function in program.functions.values():
        for op in function.walk():
            if not isinstance(op, Allocation) or scope_of_allocation(op) is not None or op.results[0] in said:
                continue
            where = "" if function is program.main else f" of @{function.sym_name.data}"
            name = op.results[0].name_hint or "buffer"
            yield f"%{name}{where} stays off chip, {_bytes(op)}: {_why_not_considered(program, function, op)}"


def _bytes(op: Allocation) -> str:
    type = op.slot_type if isinstance(op, RingOp) else op.results[0].type
    static = isa(type, MemRefType) and type.has_static_shape()
    return f"{size_in_bytes(op):,} bytes" if static else "of no static size"


def _why_not_considered(program: ProgramUse, function: func.FuncOp, op: Allocation) -> str:
    """Why no strategy decides about a buffer, or none was about to gain anything."""
    if function is not program.main:
        return f"it is made in @{function.sym_name.data}, and only what @{ENTRY} makes stays on chip between kernels"
    if not isinstance(op, memref.AllocOp):
        return f"it is made by {op.name}, and only a memref.alloc is given a place"
    tensor = next((each for each in program.tensors if each.root is op.results[0]), None)
    around = op.parent_op()
    if tensor is None:
        return "nothing accesses it" if around in (None, program.main) else f"it is made inside {around.name}"
    if not _streamed(tensor):
        return "no kernel of the machine moves any of it"
    if tensor.is_accessed_once():
        return f"{_where(tensor.sites[0])} alone accesses it"
    return "no scope of the machine has engines both from and to off chip"


def _tensors(
    program: ProgramUse, decisions: Sequence[Decision], offered: Mapping[str, OnChipLayout]
) -> Iterator[tuple[SSAValue, str]]:
    """What `remarks` says of the tensors that a strategy decides about."""
    kept = {name: decision for decision in decisions for name in decision.kept()}
    problems = {name: decision for decision in decisions for name in decision.places}
    for tensor in program.tensors:
        if (decision := kept.get(tensor.name)) is not None:
            yield from ((tensor.root, line) for line in _kept(decision, tensor.name))
            continue
        place = offered.get(tensor.name)
        moved = _streamed(tensor)
        if place is None or not moved or tensor.is_accessed_once():
            continue
        if (asked := problems.get(tensor.name)) is not None:
            why = f'the strategy leaves it out of "{asked.scope}", where {place.size:,} bytes would be taken'
        else:
            site, reason = next(iter(place.reasons.items()), (tensor.sites[0], "nothing would be saved"))
            why = f"{_where(site)}: {reason}"
        yield tensor.root, f"%{tensor.name} streams, {moved:,} bytes: {why}"


def _kept(decision: Decision, name: str) -> Iterator[str]:
    place, tensor = decision.places[name], decision.tensor(name)
    moved, saved = _streamed(place.tensor), decision.saved(name)
    steps = place.tensor.by_step()
    for run in decision.allocation.runs:
        if run.tensor != name:
            continue
        first, last = (steps[tensor.accesses[index].step][0] for index in (run.first, run.last))
        ends = " ".join(
            f"{movement.kind} {movement.bytes:,},"
            for movement in decision.movements()
            if movement.tensor == name and movement.kind != "stream" and run.first <= movement.access <= run.last
        )
        yield (
            f'%{name} stays in "{decision.scope}" at {run.offset} from {_where(first)} to {_where(last)}: '
            f"{f'{ends} ' if ends else ''}{saved:,} of {moved:,} bytes saved"
        )


def _streamed(tensor: TensorUse) -> int:
    """Bytes over the edge of a tensor off chip: copies of the host move none."""
    return sum(max(0, site.into + site.out) for site in tensor.sites)


def _where(site: Site) -> str:
    return f"@{site.op.callee.string_value()}" if isinstance(site.op, func.CallOp) else site.op.name
