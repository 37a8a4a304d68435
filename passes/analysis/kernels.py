# SPDX-License-Identifier: Apache-2.0
"""The functions of a module below graph level: `@main`, which calls, and kernels, which compute on one device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.diagnostics import location_of
from penstock.dialects.machine import HOST, REGISTERS, TargetOp, find_target
from penstock.dialects.products import added_product
from penstock.dialects.remarks import Kind, remark
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.loops import iteration_count, trip_count

ENTRY = "main"
"""The function that is run; the others with a body are kernels."""
DEVICE = "device"
"""The attribute of a kernel that says where it runs: `@host` or the machine's symbol."""
REMARK = "device_remark"
"""The attribute of a kernel on the host that says which ops no intrinsic covers, and why."""
MACS = "macs"
"""The attribute of a kernel with the multiply-accumulates of its contractions, counted before tiling: useful ones."""
CROSSING = "crossing"
"""The attribute of a kernel with the bytes that its calls hand to kernels on another device, where there are any."""
TILING = "tiling"
"""The attribute of a tiled kernel that says, for people, how each dim is cut and what that wastes."""
TILER = "tiler"
"""The attribute of a kernel that says which tiler said that it fits the machine, where it is not the usual one."""
PIPELINING = "pipelining"
"""The attribute of a pipelined kernel that says, for people, which buffers have several slots and what that gains."""
DEPTHS = "depths"
"""The attribute of a tiled kernel with the slots of each scope for what a loop refills, where there are several."""
AUTO = "auto"
"""The depth that says: as `depths` of the kernel does."""


_ALSO = "; also "
"""The separator of two reasons of a remark."""
_NAME = re.compile(r'^(?:"(?:[^"\\]|\\.)*"|\S+:\d+:\d+): ')
"""The start of a reason: the operation that it is about."""
_REASON = re.compile(rf'(?:{_ALSO})?((?:"(?:[^"\\]|\\.)*"|(?!{_ALSO}).)+)', re.DOTALL)
"""One of the reasons of a remark; what is between two is none in the quotes of a name."""
_MADE_ON_CHIP = re.compile(r"(.+)_on_chip(?:_\d+)?")
_MOVERS = re.compile(r"(fill|spill|border)(_\d+)?")
_VERSION = re.compile(r"(.+)_\d+")


def origin_of(name: str) -> str:
    """The name of the kernel that `mem-promote` made the kernel `name` of, where it is called as one of those."""
    made = _MADE_ON_CHIP.fullmatch(name)
    return name if made is None else made[1]


def version_of(name: str) -> str | None:
    """The name of the kernel that `tensor-to-loop` makes another version of, where `name` is called as one of those."""
    made = _VERSION.fullmatch(name)
    return None if made is None else made[1]


def is_mover(name: str) -> bool:
    """Whether a kernel is called as those that `mem-promote` adds to fill and empty what stays on chip."""
    return _MOVERS.fullmatch(name) is not None


def depths_of(kernel: func.FuncOp) -> dict[str, int]:
    """The slots that each scope has for what a loop of this kernel refills; one where none are said."""
    found = kernel.attributes.get(DEPTHS)
    pairs = found.data.items() if isinstance(found, DictionaryAttr) else ()
    return {scope: count.value.data for scope, count in pairs if isinstance(count, IntegerAttr)}


def add_remark(kernel: func.FuncOp, name: str, parts: Sequence[str], kind: Kind = "passed") -> None:
    """Add to what an attribute of a kernel says to people, and remark it."""
    remark(kernel, kind, "; ".join(parts))
    before = kernel.attributes.get(name)
    said = [before.data] if isinstance(before, StringAttr) else []
    if text := "; ".join([*said, *parts]):
        kernel.attributes[name] = StringAttr(text)


def kernels(module: ModuleOp) -> Iterator[func.FuncOp]:
    """Every function with a body that is not the entry, in order."""
    for op in list(module.ops):
        if isinstance(op, func.FuncOp) and not op.is_declaration and op.sym_name.data != ENTRY:
            yield op


def device_of(kernel: func.FuncOp) -> str | None:
    """The device that `kernel` runs on; None before it is decided."""
    device = kernel.attributes.get(DEVICE)
    return device.string_value() if isinstance(device, SymbolRefAttr) else None


def machine_of(module: ModuleOp) -> TargetOp | None:
    """The machine in the module; None if there is none, or if it is the host itself."""
    target = find_target(module)
    return None if target is None or target.is_host else target


def processor_of(module: ModuleOp) -> TargetOp | None:
    """The machine in the module if it is the host itself, and its file says what its registers hold; else None."""
    target = find_target(module)
    if target is None or not target.is_host or REGISTERS not in target.scopes():
        return None
    processor = target.processor()
    return target if processor is not None and processor.vector is not None else None


def has_fma(module: ModuleOp) -> bool:
    """Whether the module is made for a host that has fused multiply-adds, by its file."""
    target = processor_of(module)
    processor = None if target is None else target.processor()
    return processor is not None and processor.fma is not None


def machine_around(op: Operation) -> TargetOp | None:
    """The machine in the module that an op is in, as `machine_of`."""
    module = op.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    return machine_of(module)


def machine_kernels(module: ModuleOp) -> tuple[TargetOp | None, list[func.FuncOp]]:
    """The machine in the module, and the kernels that run on it."""
    target = machine_of(module)
    if target is None:
        return None, []
    name = target.sym_name.data
    return target, [kernel for kernel in kernels(module) if device_of(kernel) == name]


def host_functions(module: ModuleOp) -> list[func.FuncOp]:
    """What runs on the host: the entry, and the kernels that no machine runs, in order."""
    devices = (HOST,) if machine_of(module) is not None else (HOST, None)
    functions = [op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration]
    return [each for each in functions if each.sym_name.data == ENTRY or device_of(each) in devices]


WIDENING = (arith.ExtFOp, arith.ExtSIOp, arith.ExtUIOp)


def is_contraction(generic: GenericOp) -> bool:
    """Whether each point of the domain adds to the output one product of two inputs, widened or not."""
    factors = added_product(generic.body.block) if has_reduction(generic) else None
    inputs = generic.body.block.args[: len(generic.inputs)]
    return factors is not None and all(_widened(factor) in inputs for factor in factors)


def reads_windows(generic: GenericOp) -> bool:
    """Whether neighbouring results of a reduction combine some of the same elements, as those of a pool do."""
    exprs = [expr for index_map in generic.indexing_maps for expr in index_map.data.results]
    return has_reduction(generic) and any(len(expr.used_dims()) > 1 for expr in exprs)


def _widened(value: SSAValue) -> SSAValue:
    return value.owner.operands[0] if isinstance(value.owner, WIDENING) else value


_KEEPS_BITS = (arith.MaximumfOp, arith.MinimumfOp, arith.MaxnumfOp, arith.MinnumfOp, arith.SelectOp)


def rounds_each_step(generic: GenericOp) -> bool:
    """
    Whether a reduction rounds what it carries to a float of fewer than 32 bits at every step: a sum of ones ends at
    2048 in f16. Minima and maxima keep the bits. No lowering of ours makes one; text that holds one means what it says.
    """
    terminator = generic.body.block.last_op
    if not has_reduction(generic) or terminator is None:
        return False
    carried = generic.body.block.args[len(generic.inputs) :]
    return any(
        accumulator_of(argument.type) != argument.type and _is_rounded(value, argument)
        for argument, value in zip(carried, terminator.operands, strict=True)
    )


def _is_rounded(value: SSAValue, argument: SSAValue) -> bool:
    """Whether `value` comes from `argument`, of the same block, by way of an op that rounds."""
    dependent: set[SSAValue] = {argument}
    assert isinstance(argument.owner, Block)
    for op in argument.owner.ops:
        if any(operand in dependent for operand in op.operands):
            dependent.update(op.results)

    def rounds(value: SSAValue) -> bool:
        if value is argument or value not in dependent:
            return False
        if not isinstance(value.owner, _KEEPS_BITS):
            return True
        chosen = value.owner.operands[1:] if isinstance(value.owner, arith.SelectOp) else value.owner.operands
        return any(rounds(each) for each in chosen)

    return rounds(value)


def has_reduction(generic: GenericOp) -> bool:
    """Whether some dim of the domain is a reduction."""
    return any(kind.data == IteratorType.REDUCTION for kind in generic.iterator_types)


def multiply_accumulates(kernel: func.FuncOp) -> int:
    """The multiply-accumulates of one call of `kernel`; its domains, and the loops around them, must be static."""
    return sum(
        _trips(op) * prod(op.get_static_loop_ranges())
        for op in kernel.walk()
        if isinstance(op, GenericOp) and is_contraction(op)
    )


def _trips(op: Operation) -> int:
    """How often the loops around `op` run it; one whose bounds are not known counts once."""
    trips, around = 1, op.parent_op()
    while around is not None:
        if isinstance(around, scf.ForOp | ForallOp):
            count = trip_count(around) if isinstance(around, scf.ForOp) else iteration_count(around)
            trips *= 1 if count is None else count
        around = around.parent_op()
    return trips


def calls_by_callee(module: Operation) -> dict[str, list[func.CallOp]]:
    """The calls in a module, by the names of what they call; none in what is no module."""
    calls: dict[str, list[func.CallOp]] = {}
    for op in module.walk() if isinstance(module, ModuleOp) else ():
        if isinstance(op, func.CallOp):
            calls.setdefault(op.callee.string_value(), []).append(op)
    return calls


@dataclass(frozen=True)
class Placement:
    """Where one kernel runs, over all calls of it from the entry."""

    kernel: str
    location: str
    device: str
    calls: int
    """The places that call it."""
    runs: int
    """How often it runs in one run of the program; a branch is always taken, and a loop of unknown trips runs once."""
    macs: int
    """Multiply-accumulates of all these runs together."""
    remark: str
    """Why it runs on the host; empty on the machine."""
    crossing: int
    """Bytes that all calls together hand to kernels on another device."""
    tiling: str
    """How its loops are cut; empty if one tile holds all of it."""
    pipelining: str
    """How far iterations of its loops overlap; empty before `accel-pipeline`, and where there are none that could."""


def partition(module: ModuleOp) -> list[Placement]:
    """What runs where, kernel by kernel, once `assign-devices` has run; at any level from then on."""
    calls = calls_by_callee(module)
    placements: list[Placement] = []
    for kernel in kernels(module):
        name = kernel.sym_name.data
        sites = calls.get(name, [])
        runs = sum(map(_trips, sites))
        placements.append(
            Placement(
                name,
                location_of(kernel),
                device_of(kernel) or HOST,
                len(sites),
                runs,
                runs * _number(kernel, MACS),
                _text(kernel, REMARK),
                _number(kernel, CROSSING),
                _text(kernel, TILING),
                _text(kernel, PIPELINING),
            )
        )
    return placements


def joined_remarks(remarks: Iterable[str]) -> str:
    """Remarks on what stays on the host as one: each reason once, with the first operation that it is about."""
    found: dict[str, str] = {}
    for each in (part for text in remarks for part in _REASON.findall(text)):
        found.setdefault(_NAME.sub("", each), each)
    return _ALSO.join(found.values())


def host_reasons(placements: Iterable[Placement]) -> dict[str, int]:
    """Why kernels stay on the host, the most frequent reason first, each with the calls that it is given for."""
    found = Counter[str]()
    for placement in placements:
        if placement.device == HOST:
            # What a remark names is an operation, and what counts is the reason after it.
            for reason in dict.fromkeys(_NAME.sub("", part) for part in _REASON.findall(placement.remark)):
                found[reason] += placement.calls
    return dict(found.most_common())


def is_unused(module: ModuleOp) -> bool:
    """Return whether all kernels of a program, whose devices are decided, are left to the host beside its machine."""
    return machine_of(module) is not None and {device_of(kernel) for kernel in kernels(module)} == {HOST}


def _number(kernel: func.FuncOp, name: str) -> int:
    found = kernel.attributes.get(name)
    return found.value.data if isinstance(found, IntegerAttr) else 0


def _text(kernel: func.FuncOp, name: str) -> str:
    found = kernel.attributes.get(name)
    return found.data if isinstance(found, StringAttr) else ""


def stated_macs(kernel: func.FuncOp) -> int | None:
    """The useful multiply-accumulates of a call of `kernel`; None where it does not say."""
    return _number(kernel, MACS) if MACS in kernel.attributes else None


def share_on_machine(placements: Sequence[Placement]) -> float:
    """The share of all multiply-accumulates that kernels on the machine do; 0 if there are none."""
    total = sum(placement.macs for placement in placements)
    return sum(p.macs for p in placements if p.device != HOST) / total if total else 0.0
