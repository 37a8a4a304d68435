# SPDX-License-Identifier: Apache-2.0
"""
Pipelines that run on one operation after another, `func.func(cse, canonicalize)`, as MLIR nests them.

xDSL's passes take modules. On a function a pass runs on the module that it is in, in which the other functions are
declarations for that time: it sees the machine and the signatures of what is called, and no other body.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Region
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, location_of

MODULE = "builtin.module"
ANCHORS = (MODULE, "func.func", "any")
"""What a pipeline may be nested in; `any` is a function or a module."""


@dataclass(frozen=True)
class NestedPipeline(ModulePass):
    """Passes that run on each operation of a kind in the body of a module, all of them on one before the next."""

    anchor: str
    """One of `ANCHORS`."""
    passes: tuple[ModulePass, ...]

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"'{self.anchor}' pipeline"

    @property
    def reassociates(self) -> bool:
        """Whether one of its passes may change the order of sums."""
        return any(getattr(each, "reassociates", False) for each in self.passes)

    @property
    def narrows_to(self) -> str | None:
        """The type that one of its passes stores values in, if one does."""
        return next((found for each in self.passes if (found := getattr(each, "narrows_to", None)) is not None), None)

    def anchored(self, module: ModuleOp) -> list[FuncOp | ModuleOp]:
        """The operations that it runs on, in order; declarations have nothing to run on."""
        found = [op for op in module.ops if isinstance(op, FuncOp | ModuleOp) and self.anchor in (op.name, "any")]
        return [op for op in found if not (isinstance(op, FuncOp) and op.is_declaration)]

    def up_to(self, done: Sequence[ModulePass]) -> NestedPipeline:
        """The same with only so many passes."""
        return NestedPipeline(self.anchor, tuple(done))

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for anchored in self.anchored(op):
            for each in self.passes:
                if isinstance(anchored, ModuleOp):
                    each.apply(ctx, anchored)
                    continue
                with alone(op, anchored, each) as target:
                    each.apply(ctx, target)


@contextmanager
def alone(module: ModuleOp, op: FuncOp, module_pass: ModulePass) -> Generator[ModuleOp]:
    """
    The `module` on which a pass runs for one function in it: the bodies of the others are not there for that time.

    Raises UserError where the pass changed what is around the function: it is one for whole modules.
    """
    before = _around(module, op)
    bodies: list[tuple[FuncOp, Region]] = []
    for other in [each for each in module.ops if isinstance(each, FuncOp) and each is not op]:
        bodies.append((other, body := Region()))
        other.body.move_blocks(body)
    grown = False
    try:
        yield module
    finally:
        for other, body in bodies:
            for block in list(other.body.blocks):
                grown = True
                other.body.detach_block(block)
            body.move_blocks(other.body)
    after = _around(module, op)
    if grown or len(before) != len(after) or not all(map(is_, before, after)):
        message = f'the pass "{module_pass.name}" changes more than the function @{op.sym_name.data} that it runs on'
        notes = [f"it is a pass of modules: nest it in {MODULE}, not in {op.name}"]
        raise UserError(message, loc=location_of(op), notes=notes)


def _around(module: ModuleOp, function: FuncOp) -> list[object]:
    """The objects, never changed in place, that the module around a function is made of, but for the other bodies."""
    found: list[object] = [*module.attributes, *module.attributes.values(), function.sym_name]
    for op in module.ops:
        found.append(op)
        if op is not function:
            found += (*op.properties.values(), *op.attributes.values())
    return found
