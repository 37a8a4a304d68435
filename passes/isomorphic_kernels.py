# SPDX-License-Identifier: Apache-2.0
"""Kernels that differ in their names and locations alone, of which networks have many: rewritten once, and copied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Operation, Region, SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.context import PenstockContext
from penstock.dialects.locations import located_in
from penstock.dialects.machine import TargetOp
from penstock.dialects.remarks import is_listened
from penstock.passes.analysis.kernels import CROSSING

T = TypeVar("T")

_OF_ITS_OWN = ("sym_name", CROSSING)
"""What says which kernel it is, and how it is called: no pass within a kernel depends on it."""


def structure_of(
    code: Operation | Region, *, names: bool = True, located: bool = True
) -> tuple[Hashable, list[LocationAttr]]:
    """
    What isomorphic functions, bodies of functions, or machines have in common: ops, types, attributes, which operand is
    which value, and unless `names` or `located` are False the names of values and which locations are equal. With it
    the known locations, in order of their first use.
    """
    found: list[Hashable] = []
    values: dict[SSAValue, int] = {}
    locations: dict[LocationAttr, int] = {}

    def define(value: SSAValue) -> None:
        values[value] = len(values)
        found.extend((value.type, value.name_hint if names else None))

    def number(location: LocationAttr) -> int | None:
        is_known = located and location is not UNKNOWN_LOC
        return locations.setdefault(location, len(locations)) if is_known else None

    def visit(op: Operation) -> None:
        found.extend((type(op), number(op.location), len(op.operands), len(op.results), len(op.regions)))
        found.extend(values.get(operand, -1) for operand in op.operands)
        if op.successors and (parent := op.parent_region()) is not None:
            found.append(tuple(parent.get_block_index(block) for block in op.successors))
        for held in (op.properties, op.attributes):
            found.append(
                tuple((key, attr) for key, attr in sorted(held.items()) if op is not code or key not in _OF_ITS_OWN)
            )
        for result in op.results:
            define(result)
        for region in op.regions:
            visit_region(region)

    def visit_region(region: Region) -> None:
        found.append(len(region.blocks))
        for block in region.blocks:
            found.append(len(block.args))
            for arg in block.args:
                found.append(number(arg.location))
                define(arg)
            for op in block.ops:
                visit(op)
            found.append(None)

    if isinstance(code, Region):
        visit_region(code)
    else:
        visit(code)
    return tuple(found), list(locations)


@dataclass(frozen=True)
class _Rewritten:
    """What became of a kernel."""

    function: func.FuncOp
    locations: list[LocationAttr]
    """The known locations that it had before, in order of their first use."""
    before: Collection[str]
    """The names of the attributes that it had."""
    note: Any


def rewrite_kernels(
    ctx: Context,
    functions: Iterable[func.FuncOp],
    target: TargetOp,
    what: ModulePass,
    rewrite: Callable[[func.FuncOp], None],
    context: Callable[[func.FuncOp], Hashable] = lambda _: None,
    note: Callable[[func.FuncOp], T] = lambda _: None,
    copied: Callable[[T, func.FuncOp], None] = lambda _, __: None,
) -> None:
    """
    Call `rewrite` for each function, or put a copy of what became of an isomorphic one in its place: of one before it,
    or of another program that shares what `ctx` remembers.

    `rewrite` changes the body and the attributes of a function, as `what` says; what it does depends on the function,
    not on its name, on the `target` and on the `context`. Locations in a copy are those of the function that it
    replaces. What `note` finds of a function that was rewritten, `copied` gets with each that became a copy of it.
    """
    done: dict[Hashable, _Rewritten] = {}
    # What somebody listens to is not said again of a copy.
    remembered = ctx.remembered if isinstance(ctx, PenstockContext) and not is_listened() else None
    machine = structure_of(target, located=False)[0] if remembered is not None else None
    for function in functions:
        structure, locations = structure_of(function)
        key = structure, context(function)
        found = done.get(key)
        is_alone = remembered is not None and not any(isinstance(op, func.CallOp) for op in function.walk())
        if found is None and remembered is not None and is_alone:
            found = remembered.get((what, machine, key))
        if found is not None:
            _copy(function, locations, found)
            copied(found.note, function)
            continue
        before = tuple(function.attributes)
        rewrite(function)
        known = {*locations, UNKNOWN_LOC}
        if all(each.location in known for each in located_in(function)) and len(function.body.blocks) == 1:
            done[key] = _Rewritten(function, locations, before, note(function))
            if remembered is not None and is_alone:
                remembered.keep((what, machine, key), replace(done[key], function=function.clone()))


def _copy(function: func.FuncOp, locations: list[LocationAttr], found: _Rewritten) -> None:
    body = found.function.body.clone()
    moved = dict(zip(found.locations, locations, strict=True))
    for each in located_in(body):
        each.location = moved.get(each.location, each.location)
    function.detach_region(0)
    function.add_region(body)
    attributes = found.function.attributes
    for name in dict.fromkeys((*found.before, *attributes)):
        if name in _OF_ITS_OWN:
            continue
        if (attr := attributes.get(name)) is None:
            del function.attributes[name]
        else:
            function.attributes[name] = attr
