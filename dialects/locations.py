# SPDX-License-Identifier: Apache-2.0
"""
Where operations and block arguments come from: the rule by which those get a location that were made without one.

What makes an operation says where it comes from if it knows; an operation that replaces another, and all that is only
there because of another, needs to say nothing. `inherit_locations` runs on whatever comes into the IR and after every
pass, so nothing is without a location between two passes. A location that a text declares to be unknown stays so.
See https://mlir.llvm.org/docs/Diagnostics/#source-locations
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import cast

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr, NameLoc, NoneAttr, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.traits import IsTerminator

from penstock.dialects.functions import NAME, attribute_text


def named(name: str) -> NameLoc:
    """The location of what a model calls by this name, without a place in a text."""
    return NameLoc(StringAttr(name), NoneAttr())


def location_of_value(value: SSAValue) -> LocationAttr:
    """Where a value is computed; for an argument of a function, the name that it has outside, with its place."""
    if not isinstance(value, BlockArgument):
        return cast(Operation, value.owner).location
    function = value.owner.parent_op()
    if not isinstance(function, FuncOp) or isinstance(value.location, NameLoc):
        return value.location
    name = attribute_text(function, value.index, NAME)
    return value.location if name is None else NameLoc(StringAttr(name), value.location)


def located_in(code: Operation | Region) -> Iterator[Operation | BlockArgument]:
    """All that has a location: the operations, and the arguments of blocks."""
    if isinstance(code, Operation):
        yield code
    for region in code.regions if isinstance(code, Operation) else (code,):
        for block in region.blocks:
            yield from block.args
            for op in block.ops:
                yield from located_in(op)


def inherit_locations(op: Operation) -> None:
    """
    Give a location to `op`, if it has none, and to all operations and block arguments in it that have none.

    A block argument and a terminator have that of the operation that they are in; any other operation that of what
    first uses its results; one that is not used, that of the last operation in its regions, or else of the one that it
    is in.
    """
    _Inheritance(op).fill()


class _Inheritance:
    """What is given locations; nothing moves meanwhile."""

    def __init__(self, root: Operation):
        self._root = root

    @cached_property
    def _order(self) -> dict[Operation, int]:
        """Program order: that of uses depends on how the IR was made."""
        return {op: number for number, op in enumerate(self._root.walk())}

    def fill(self) -> None:
        """Visit everything."""
        if self._root.location is UNKNOWN_LOC:
            self._root.location = self._served(self._root, UNKNOWN_LOC)
        self._fill_regions(self._root)

    def _fill_regions(self, op: Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                self._fill_block(block, op.location)

    def _fill_block(self, block: Block, around: LocationAttr) -> None:
        for arg in block.args:
            if arg.location is UNKNOWN_LOC:
                arg.location = around
        # What uses a value comes after it: backwards, it has its location by then.
        op = block.last_op
        if op is not None and op.location is UNKNOWN_LOC and op.has_trait(IsTerminator, value_if_unregistered=False):
            op.location = around
        while op is not None:
            if op.location is UNKNOWN_LOC:
                op.location = self._served(op, around)
            if op.regions:
                self._fill_regions(op)
            op = op.prev_op

    def _served(self, op: Operation, otherwise: LocationAttr) -> LocationAttr:
        users = [use.operation for result in op.results for use in result.uses]
        if located := [user for user in users if user.location is not UNKNOWN_LOC]:
            several = any(user.location is not located[0].location for user in located)
            return (min(located, key=lambda user: self._order.get(user, 0)) if several else located[0]).location
        inner = (each.location for each in op.walk(reverse=True) if each.location is not UNKNOWN_LOC)
        return next(inner, otherwise)
