"""Kernels that differ in their names and locations alone, of which networks have many: rewritten once, and copied."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from xdsl.dialects import func
from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Attribute, Operation, Region, SSAValue

from penstock.dialects.locations import located_in
from penstock.passes.analysis.kernels import CROSSING

_OF_ITS_OWN = ("sym_name", CROSSING)
"""What says which kernel it is, and how it is called: no pass within a kernel depends on it."""


def structure_of(
    code: func.FuncOp | Region, *, names: bool = True, located: bool = True
) -> tuple[Hashable, list[LocationAttr]]:
    """
    What isomorphic functions, or bodies of functions, have in common: ops, types, attributes, which operand is which
    value, and unless `names` or `located` are False the names of values and which locations are equal. With it the
    known locations, in order of their first use.
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
            found.append(tuple((key, attr) for key, attr in sorted(held.items()) if key not in _OF_ITS_OWN))
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


def rewrite_kernels(
    functions: Iterable[func.FuncOp],
    rewrite: Callable[[func.FuncOp], None],
    context: Callable[[func.FuncOp], Hashable] = lambda _: None,
    copied: Callable[[func.FuncOp, func.FuncOp], None] = lambda _, __: None,
) -> None:
    """
    Call `rewrite` for each function, or put a copy of what became of an isomorphic one in its place.

    `rewrite` changes the body and the attributes of a function; what it does depends on the function, not on its name,
    and on the `context`. Locations in a copy are those of the function that it replaces. `copied` is called with what
    was rewritten and what became a copy of it.
    """
    done: dict[Hashable, tuple[func.FuncOp, list[LocationAttr], dict[str, Attribute]]] = {}
    for function in functions:
        structure, locations = structure_of(function)
        key = structure, context(function)
        if key in done:
            _copy(function, locations, *done[key])
            copied(done[key][0], function)
            continue
        before = dict(function.attributes)
        rewrite(function)
        known = {*locations, UNKNOWN_LOC}
        if all(each.location in known for each in located_in(function)) and len(function.body.blocks) == 1:
            done[key] = function, locations, before


def _copy(
    function: func.FuncOp,
    locations: list[LocationAttr],
    rewritten: func.FuncOp,
    located: list[LocationAttr],
    before: dict[str, Attribute],
) -> None:
    body = rewritten.body.clone()
    moved = dict(zip(located, locations, strict=True))
    for each in located_in(body):
        each.location = moved.get(each.location, each.location)
    function.detach_region(0)
    function.add_region(body)
    for name in {**before, **rewritten.attributes}:
        if name in _OF_ITS_OWN:
            continue
        if (attr := rewritten.attributes.get(name)) is None:
            del function.attributes[name]
        else:
            function.attributes[name] = attr
