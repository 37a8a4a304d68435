# SPDX-License-Identifier: Apache-2.0
"""
The levels of the IR: that of a program, that of a pass, and what is said where they differ.

A pass works at the level of its folder, `passes/graph` and so on, or at the level that its attribute `level` names; a
lowering works at the level that it leaves. Passes of neither kind, such as `cse`, work at any level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import USAGE, UserError, location_of

LEVELS = ("graph", "tensor", "loop", "accel")
"""The levels of the IR, from the highest."""

_LEVEL_OF_DIALECT = {
    "accel": "accel",
    "affine": "loop",
    "linalg": "tensor",
    "mem": "loop",
    "memref": "loop",
    "scf": "tensor",
    "tensor": "tensor",
}

_FOLDER = re.compile(
    r"penstock\.(passes\.(?P<folder>graph|tensor|loop|accel)|lowering\.(?P<source>[a-z]+)_to_[a-z]+)\b"
)


def level_of(module: ModuleOp) -> str:
    """
    The lowest level whose operations the functions of a module contain, without kernels that are called from a graph:
    they wait at tensor level for what is around them.
    """
    found, kernels = "graph", set[str]()
    if any(op.name.startswith("graph.") for op in module.walk()):
        # Slow to import, and programs below graph level need none of it.
        from penstock.dialects.graph.kernel import called_kernels

        kernels = set(called_kernels(module))
    for function in module.body.block.ops:
        if isinstance(function, FuncOp) and function.sym_name.data not in kernels:
            for op in function.walk():
                found = max(found, _level_of_op(op), key=LEVELS.index)
    return found


def _level_of_op(op: Operation) -> str:
    if isinstance(op, FuncOp):
        types = (*op.function_type.inputs, *op.function_type.outputs)
        return "loop" if any(isa(type, MemRefType) for type in types) else "graph"
    return _LEVEL_OF_DIALECT.get(op.name.split(".")[0], "graph")


def level_of_pass(module_pass: ModulePass) -> str | None:
    """The level that a pass works at; None for any."""
    return level_of_class(type(module_pass))


def level_of_class(pass_type: type[ModulePass]) -> str | None:
    """The level that the passes of a class work at; None for any."""
    declared = getattr(pass_type, "level", None)
    if isinstance(declared, str) and declared in LEVELS:
        return declared
    found = _FOLDER.match(pass_type.__module__)
    return None if found is None else found["folder"] or found["source"]


def has_level(module: ModuleOp, level: str) -> bool:
    """Whether a module has something for passes of a level; what is in memory is for those of the loop level, too."""
    functions = (op for op in module.ops if isinstance(op, FuncOp))
    return any(_is_at(op, level) for function in functions for op in function.walk())


def is_elsewhere(module: ModuleOp, level: str) -> bool:
    """
    Whether all that a module has is for passes of other levels.

    What only returns its arguments, or constants, has no level: passes of each take it as it is.
    """
    return not has_level(module, level) and any(has_level(module, other) for other in LEVELS)


def require_level(module: ModuleOp, until: str, place: str | None = None) -> None:
    """Raise UserError where passes that a person chose leave a program that is not at level `until`."""
    # What the host runs has no accel level.
    reached = ("loop", "accel") if until == "accel" else (until,)
    if all(is_elsewhere(module, level) for level in reached):
        message = f"these passes leave the program at the {level_of(module)} level"
        raise UserError(message, loc=place, notes=[f"it is wanted at the {until} level"], status=USAGE)


def _is_at(op: Operation, level: str) -> bool:
    dialect = op.name.split(".")[0]
    match level:
        case "graph" | "accel":
            return dialect == level
        case "tensor":
            # Structured ops are at the loop level once they work on memrefs.
            return dialect in ("linalg", "tensor", "scf") and _has_type(op, TensorType)
        case _:
            return dialect in ("mem", "memref", "affine") or _has_type(op, MemRefType)


def _has_type(op: Operation, kind: type[TensorType[Attribute] | MemRefType[Attribute]]) -> bool:
    types = op.function_type.inputs if isinstance(op, FuncOp) else (*op.operand_types, *op.result_types)
    return any(isinstance(type, kind) for type in types)


@dataclass(frozen=True)
class LevelMismatch:
    """A pass that finds nothing of its level in a program."""

    module_pass: ModulePass
    level: str
    found: str
    """The level of the program."""
    place: str | None
    """Where it first has something of that level."""

    def message(self, verb: str) -> str:
        name = self.module_pass.name
        return f'the pass "{name}" {verb} {self.level} level, and the program is at the {self.found} level'

    def error(self) -> UserError:
        """The error where the pass cannot work on such a program."""
        first, last = LEVELS.index(self.found), LEVELS.index(self.level)
        lowerings = [f"{LEVELS[n]}-to-{LEVELS[n + 1]}" for n in range(first, last)]
        notes = [f"lower it first: {', then '.join(lowerings)}"] if lowerings else []
        return UserError(self.message("requires the"), loc=self.place, notes=notes)


def mismatched_level(module_pass: ModulePass, module: ModuleOp) -> LevelMismatch | None:
    """The mismatch of a pass and a program that is all at other levels; None where there is something for the pass."""
    level = level_of_pass(module_pass)
    if level is None or not is_elsewhere(module, level):
        return None
    found = level_of(module)
    ops = (op for function in module.ops if isinstance(function, FuncOp) for op in function.walk())
    first = next((op for op in ops if _level_of_op(op) == found), module)
    return LevelMismatch(module_pass, level, found, location_of(first))
