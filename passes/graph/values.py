# SPDX-License-Identifier: Apache-2.0
"""What the graph passes share: the functions they work on, constants, and names of derived values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from types import MappingProxyType, UnionType

import numpy as np
from xdsl.dialects.builtin import LocationAttr, MemRefType, ModuleOp, NameLoc, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph import (
    ConstantOp,
    ConvOp,
    GraphOp,
    IfOp,
    LayoutTransformOp,
    LoopOp,
    ReshapeOp,
    SliceOp,
    Tensor,
    WeightAttr,
    dense_of,
    tensor_of,
)
from penstock.dialects.graph.base import is_static
from penstock.dialects.graph.kernel import called_kernels
from penstock.dialects.locations import location_of_value
from penstock.dialects.weights import Array, WeightStore
from penstock.runtime.interpreter.graph import evaluate_op

INLINE_LIMIT = 16
"""Constants of more elements go to the weight store; smaller ones stay in the text unless they are different floats."""

LAYOUT_ATTRIBUTE = "graph.layout"
"""On an op without a layout of its own: its result is an image in that layout."""


def graph_blocks(module: ModuleOp) -> Iterator[Block]:
    """
    The body of every function that could be a graph: that has a body, of one block, works on no memory, and is no
    kernel that a graph calls; and before each of them the branches and the bodies of loops inside it, which see nothing
    but their arguments.

    Raises UserError for one with sizes that are not known.
    """
    kernels = called_kernels(module)
    for op in list(module.ops):
        if (
            isinstance(op, FuncOp)
            and len(op.body.blocks) == 1
            and not _is_below(op)
            and op.sym_name.data not in kernels
        ):
            require_static(op)
            yield from _with_inner(op.body.block)


def _with_inner(block: Block) -> Iterator[Block]:
    """The blocks of the branches and loops inside a block, from the inside out, then the block itself."""
    for op in list(block.ops):
        if isinstance(op, IfOp | LoopOp):
            for region in op.regions:
                yield from _with_inner(region.block)
    yield block


def isolate(blocks: Sequence[Block]) -> list[SSAValue]:
    """
    Let blocks see nothing but their arguments: what their ops use of the outside becomes an argument of each, after the
    others, and constants are copied. The values that these arguments stand for.
    """
    outside: dict[SSAValue, None] = {}
    for block in blocks:
        copies: dict[SSAValue, SSAValue] = {}
        for op in list(block.ops):
            for index, value in enumerate(op.operands):
                if value.owner is block or (isinstance(value.owner, Operation) and value.owner.parent is block):
                    continue
                if not isinstance(value.owner, ConstantOp):
                    outside[value] = None
                    continue
                if value not in copies:
                    copy = value.owner.clone()
                    Rewriter.insert_op(copy, InsertPoint.at_start(block))
                    copies[value] = copy.result
                op.operands[index] = copies[value]
    for block in blocks:
        ops = list(block.ops)
        for value in outside:
            argument = block.insert_arg(value.type, len(block.args), location_of_value(value))
            argument.name_hint = value.name_hint
            for op in ops:
                for index, operand in enumerate(op.operands):
                    if operand is value:
                        op.operands[index] = argument
    return list(outside)


def _is_below(function: FuncOp) -> bool:
    """Whether a function is at loop level or below."""
    return any(isa(type, MemRefType) for type in (*function.function_type.inputs, *function.function_type.outputs))


def require_static(function: FuncOp) -> None:
    """Raise UserError, located at the op, if a size in `function` is not known."""
    for op in function.walk():
        arguments = [argument for region in op.regions for block in region.blocks for argument in block.args]
        for value in (*op.results, *arguments):
            if not is_static(value.type):
                raise UserError(
                    f"this pass needs shapes that are known, and here is a {value.type}",
                    loc=location_of(op),
                    notes=["bind the dimensions first: --dim NAME=SIZE, or the pass bind-dims"],
                )


def constant_of(array: Array, name: str, store: WeightStore, location: LocationAttr) -> ConstantOp:
    """A constant with the value `array`: in the text if small and not of different floats, else the weight `name`."""
    dense = dense_of(array) if array.size <= INLINE_LIMIT else None
    if dense is not None:
        op = ConstantOp(dense)
    else:
        weight = WeightAttr(store.add(name, array))
        op = ConstantOp(weight, Tensor(element_type(array.dtype), array.shape))
    op.location = location
    return op


@cache
def _is_graph_op(op_class: type[Operation]) -> bool:
    """Quicker than `isinstance`, which is Python code for the classes of ops."""
    return issubclass(op_class, GraphOp)


def is_constant(value: SSAValue, most: int | None = None) -> bool:
    """
    Whether a value depends on constants only, and can therefore be computed before the program runs.

    With `most` the answer is no where that takes more than so many values to find out.
    """
    # Sets of values, and `isinstance` for them, are Python code: there is nothing of that in this loop.
    seen: set[int] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        owner = current.owner
        if type(owner) is Block or not _is_graph_op(type(owner)) or (most is not None and len(seen) > most):
            return False
        assert isinstance(owner, Operation)
        pending += owner.operands
    return True


def constant_array(value: SSAValue | None, store: WeightStore) -> Array | None:
    """The value of what depends on constants only, None of anything else."""
    if value is None or not isinstance(op := value.owner, GraphOp) or not is_constant(value):
        return None
    operands = [constant_array(operand, store) for operand in op.operands]
    return evaluate_op(op, [array for array in operands if array is not None], store)[0]


def number_of(value: SSAValue, store: WeightStore | None = None) -> np.generic | None:
    """
    The number that every element of a constant is, in its element type.

    Of weights only those in `store` with few elements are read.
    """
    owner = value.owner
    if not isinstance(owner, ConstantOp):
        return None
    if owner.weight is not None and (store is None or tensor_of(value).element_count() > INLINE_LIMIT):
        return None
    (array,) = evaluate_op(owner, [], store)
    if not array.size or array.tobytes() != array.ravel()[:1].tobytes() * array.size:
        return None
    return array.ravel()[0]


def is_view(op: Operation) -> bool:
    """
    Whether outside groups `op` only says where elements lie, so that nothing is computed or copied for it.

    A reshape does, and a change of layout that moves no element; so does a slice that takes runs of neighbouring
    elements. One that goes backwards, or picks single elements apart, is a copy: strides are not negative, and an
    intrinsic or a transfer moves rows, not elements.
    That a row which is read again and again might be nearer in a copy of its own is not weighed: its elements are
    neighbours there too, and the copy is another pass over them.
    """
    if isinstance(op, SliceOp):
        sizes, steps = op.sizes.get_values(), op.steps.get_values()
        moving = [dim for dim, size in enumerate(sizes) if size > 1]
        if 0 in sizes or any(steps[dim] < 0 for dim in moving):
            return False
        extents = tensor_of(op.x).get_shape()
        return not moving or (steps[moving[-1]] == 1 and prod(extents[moving[-1] + 1 :]) == 1)
    return isinstance(op, ReshapeOp) or (isinstance(op, LayoutTransformOp) and op.is_view)


def only_user(value: SSAValue) -> Operation | None:
    """The one op that uses `value`, however often; None if there are several or none."""
    users = {use.operation for use in value.uses}
    return users.pop() if len(users) == 1 else None


def derived(location: LocationAttr, part: str) -> LocationAttr:
    """
    The location of a value that is only on the way to the one at `location`: `"bn1"` becomes `"bn1/scale"`.

    What compares values by name, node by node, must not take it for the result of the node.
    """
    if isinstance(location, NameLoc):
        return NameLoc(StringAttr(f"{location.desc.data}/{part}"), location.location)
    return location


def erase_dead(block: Block, kinds: type[Operation] | UnionType = ConstantOp) -> None:
    """Erase the ops of `block` of these kinds whose results nothing uses, users before what they use."""
    for op in reversed(list(block.ops)):
        if op.results and isinstance(op, kinds) and not any(result.uses for result in op.results):
            Rewriter.erase_op(op)


def rebuilt(
    op: GraphOp, operands: Sequence[SSAValue], type: Attribute | None = None, **properties: Attribute
) -> GraphOp:
    """`op` on other operands, with other properties and another type of its result where they are given."""
    return op.create(
        operands=operands, result_types=[type or op.result.type], properties={**op.properties, **properties}
    )


class NodeBuilder:
    """
    Makes the ops that take the place of the op at `location`: collects them in `ops`, or hands them to `insert`.

    The op whose result is that of the replaced one gets `attributes`: what passes noted about the value still holds.
    """

    def __init__(
        self,
        location: LocationAttr,
        store: WeightStore,
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
        insert: Callable[[Operation], object] | None = None,
    ):
        self.location = location
        self.store = store
        self.ops: list[Operation] = []
        self._attributes = attributes
        self._insert = insert or self.ops.append

    def add(self, op: GraphOp, part: str = "") -> SSAValue:
        """Append the op that computes the `part` of the node; without one, the op whose result is that of the node."""
        op.location = derived(self.location, part) if part else self.location
        if part:
            op.result.name_hint = part
        elif not isinstance(op, ConvOp):  # which has a layout of its own
            op.attributes.update(self._attributes)
        self._insert(op)
        return op.result

    def constant(self, array: Array, part: str) -> SSAValue:
        """Append a constant; as a weight it is called after the node."""
        return self.add(self.constant_op(array, part), part)

    def constant_op(self, array: Array, part: str) -> ConstantOp:
        """As `constant`, but not appended."""
        name = f"{self.location.desc.data}/{part}" if isinstance(self.location, NameLoc) else part
        op = constant_of(array, name, self.store, self.location)
        op.result.name_hint = part
        return op

    def number(self, number: float, like: SSAValue, part: str) -> SSAValue:
        """Append a constant scalar with the element type of a value."""
        return self.constant(np.asarray(number, numpy_dtype(tensor_of(like).element_type)), part)
