# SPDX-License-Identifier: Apache-2.0
"""A module at loop or accel level as what is written of it: its functions, their names, and what a caller passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.element_bits import DType
from penstock.dialects.functions import (
    OUTPUT,
    WEIGHT,
    attribute_text,
    body_block,
    bounds_of,
    input_name,
    shape_words,
)
from penstock.dialects.machine import REGISTERS, TargetOp, find_target
from penstock.dialects.mem import RingOp, ScopedAllocation, memref_of
from penstock.dialects.upstream.scf import ForallOp
from penstock.lowering.codegen.aliasing import data_flows, restricted_arguments
from penstock.lowering.codegen.naming import function_names, program_names
from penstock.lowering.codegen.text import Names
from penstock.lowering.codegen.types import CType, c_type
from penstock.lowering.codegen.views import unsupported
from penstock.passes.analysis.vector_products import VectorProduct
from penstock.passes.loop.forall_to_for import run_in_order

ENTRY = "main"
"""The function that is run."""

VECTOR_BYTES, VECTOR_REGISTERS = 32, 16
"""Of the CPU where no machine says it; CPUs with shorter vectors take several."""

COUNTERS = {
    "transfers": "commands of DMA engines",
    "bytes_in": "moved from off chip, inside the windows",
    "bytes_out": "moved off chip, inside the windows",
    "bytes_on_chip": "moved between scopes",
    "commands": "commands of intrinsics",
    "macs": "multiply-accumulates of intrinsics",
    "host_macs": "multiply-accumulates of structured ops on the host",
}
"""The counters of a context, which it begins with, 8 bytes each, and what they count."""


@dataclass
class Program:
    """What the functions of one program share."""

    target: TargetOp | None
    """The machine; None for the host alone."""
    functions: dict[str, func.FuncOp]
    """`@main` and what it calls, by symbol."""
    names: Names
    """The names that its text has for functions and globals."""
    symbols: dict[str, str]
    """The name of each function and each global."""
    globals: dict[str, memref.GlobalOp]
    """The constants of the module, by symbol."""
    written: dict[str, frozenset[int]]
    """For each function the numbers of the arguments that it writes through."""
    restricted: dict[str, frozenset[int]]
    """For each function the arguments whose memory no other argument reaches."""
    helpers: set[str] = field(default_factory=set[str])
    """The helper functions that the text so far calls."""
    products: dict[str, VectorProduct] = field(default_factory=dict[str, VectorProduct])
    """The intrinsics of the host that the text so far calls, by the names of their functions."""
    scope_ends: dict[str, int] = field(default_factory=dict[str, int])
    """For each scope, and for the arena under "", the bytes that its buffers reach to."""
    scratch: int = 0
    """Bytes that a nest may use while it runs."""
    threads: int = 1
    """How many threads run the iterations of its parallel loops."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vectors of the processor that it is made for."""
        processor = self.target.processor() if self.target is not None else None
        return (processor.vector_bytes if processor is not None else None) or VECTOR_BYTES

    @property
    def vector_registers(self) -> int:
        """How many of them the processor has."""
        registers = None if self.target is None else self.target.scopes().get(REGISTERS)
        return VECTOR_REGISTERS if registers is None else registers.size_bytes // self.vector_bytes

    def reserve_scratch(self, size: int) -> None:
        """Make the scratch memory at least `size` bytes."""
        self.scratch = max(self.scratch, size)


@dataclass(frozen=True)
class CParameter:
    """An array that the caller passes: an input, a weight or an output. Dense, in row-major order."""

    name: str
    """As the program calls it, with letters that C permits."""
    shape: tuple[int, ...]
    """Its extents; `DYNAMIC_INDEX` for one that only a run knows."""
    ctype: CType
    """The type of its elements."""
    size_names: tuple[str, ...] = ()
    """The extents in words, where one of them is known only in a run."""
    dtype: DType = field(init=False, compare=False)
    """The NumPy type of its elements, which every call asks for; integers are signless and count as signed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.ctype.dtype())

    def __str__(self) -> str:
        shape = "x".join(self.size_names or map(str, self.shape))
        return f"{self.name}: {shape or 'scalar'} {self.ctype.name}"


@dataclass(frozen=True)
class Roles:
    """What each argument of `@main` is: its list, and its place in it."""

    lists: tuple[tuple[str, int], ...]
    """The list, by name, and the place of each."""
    inputs: tuple[CParameter, ...]
    """In order."""
    weights: tuple[CParameter, ...]
    """In order."""
    outputs: tuple[CParameter, ...]
    """In order."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The sizes that the caller gives, each with its bound."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a caller knows of a program, whatever language its text is in."""

    name: str
    """What all its names begin with."""
    inputs: tuple[CParameter, ...]
    """What `<name>_run` takes, in order."""
    weights: tuple[CParameter, ...]
    """The weights, in the order in which they are passed."""
    outputs: tuple[CParameter, ...]
    """What `<name>_run` writes, in order."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The sizes that only a run knows, which `<name>_run` takes behind the arrays, and the bound of each."""
    arena_bytes: int
    """Bytes for the off-chip intermediates."""
    scope_bytes: Mapping[str, int]
    """For each scope the bytes that the plan uses."""
    threads: int
    """The most threads that a context uses; with more than one it is started before it runs, and stopped."""

    @property
    def run_symbol(self) -> str:
        return f"{self.name}_run"

    @property
    def size_symbol(self) -> str:
        return f"{self.name}_context_size"


def _roles(entry: func.FuncOp) -> Roles:
    if entry.function_type.outputs.data:
        raise unsupported(
            entry, "@main returns a value", "C comes from the loop or the accel level: lower the module first"
        )
    found: dict[str, list[CParameter]] = {"inputs": [], "weights": [], "outputs": []}
    sizes = bounds_of(entry)
    lists: list[tuple[str, int]] = []
    for arg in entry.body.block.args:
        role, text = "inputs", input_name(entry, arg.index)
        if (weight := attribute_text(entry, arg.index, WEIGHT)) is not None:
            role, text = "weights", weight
        elif (output := attribute_text(entry, arg.index, OUTPUT)) is not None:
            role, text = "outputs", output
        if not isa(arg.type, MemRefType):
            raise unsupported(entry, f"argument {arg.index} of @main is a {arg.type}, not a memref")
        lists.append((role, len(found[role])))
        words = shape_words(entry, arg.index, list(sizes))
        ctype = c_type(arg.type.element_type, entry)
        found[role].append(CParameter(text, tuple(arg.type.get_shape()), ctype, words))
    roles = (tuple(found[role]) for role in ("inputs", "weights", "outputs"))
    return Roles(tuple(lists), *roles, sizes=tuple(sizes.items()))


def _check_inputs(entry: func.FuncOp, roles: Roles, written: frozenset[int]) -> None:
    for number, (role, _) in enumerate(roles.lists):
        if number in written and role != "outputs":
            raise UserError(
                f"@main writes to its argument {number}, which is no output",
                loc=location_of(entry),
                notes=['an output has the argument attribute graph.output = "NAME"'],
            )


def read_program(
    module: ModuleOp, name: str, *, but: Callable[[ForallOp], bool] = lambda loop: False
) -> tuple[Program, Roles]:
    """
    What is written of a module, in functions that are called `<name>_...`, and what the entry takes. Iterations of
    `scf.forall` are put one after the other, in all loops but those that `but` names.
    """
    if any(isinstance(op, ForallOp) and not but(op) for op in module.walk()):
        module = module.clone()
        run_in_order(module, but=but)
    functions = _reachable(module)
    entry = functions[ENTRY]
    roles = _roles(entry)
    target = find_target(module)
    globals_ = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, memref.GlobalOp)}
    names = program_names(name)
    symbols = function_names(names, name, ENTRY, functions, globals_)
    flows = data_flows(functions)
    written = {symbol: flow.summary.writes for symbol, flow in flows.items()}
    program = Program(target, functions, names, symbols, globals_, written, restricted_arguments(flows, ENTRY))
    _check_inputs(entry, roles, program.written[ENTRY])
    _place(program)
    return program, roles


def _reachable(module: ModuleOp) -> dict[str, func.FuncOp]:
    """`@main` and what it calls, in the order of the module; raises UserError if there is no `@main`."""
    known = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, func.FuncOp)}
    if ENTRY not in known or known[ENTRY].is_declaration:
        names = ", ".join(f"@{symbol}" for symbol in known) or "no functions"
        raise UserError("the module has no function @main, so it has no C", notes=[f"it has {names}"])
    body_block(known[ENTRY], "written as C")
    found = {ENTRY}
    pending = [known[ENTRY]]
    while pending:
        for op in pending.pop().walk():
            if not isinstance(op, func.CallOp):
                continue
            callee = op.callee.string_value()
            if callee not in known:
                near = did_you_mean(callee, known)
                raise UserError(
                    f"the module has no func.func @{callee}", loc=location_of(op), notes=[near] if near else []
                )
            if callee not in found:
                if known[callee].is_declaration:
                    raise unsupported(op, f"@{callee} is declared, but not defined, so it has no C")
                body_block(known[callee], "written as C")
                found.add(callee)
                pending.append(known[callee])
    return {symbol: function for symbol, function in known.items() if symbol in found}


def _place(program: Program) -> None:
    """Note where the bytes of each scope end; raises UserError for a buffer that is placed wrongly."""
    for function in program.functions.values():
        for op in function.walk():
            if isinstance(op, ScopedAllocation):
                _require_placed(program, op)


def _require_placed(program: Program, op: ScopedAllocation) -> None:
    type = op.slot_type if isinstance(op, RingOp) else memref_of(op.storage)
    scope, offset, ctype = op.scope, op.planned_offset(), c_type(type.element_type, op)
    end = offset + op.size_in_bytes
    if offset % ctype.size:
        raise UserError(
            f"byte {offset} is no offset for {ctype.name}: it must be a multiple of {ctype.size}", loc=location_of(op)
        )
    if scope is not None and program.target is not None and end > (size := program.target.scope(scope).size_bytes):
        raise UserError(
            f'this buffer ends at byte {end} of "{scope}", which has {size}',
            loc=location_of(op),
            notes=["run `mem-plan` again, or tile smaller"],
        )
    if scope != REGISTERS:
        program.scope_ends[scope or ""] = max(program.scope_ends.get(scope or "", 0), end)
