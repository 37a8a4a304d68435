# SPDX-License-Identifier: Apache-2.0
"""
Verification of ours, run beside every `verify` of xDSL, which checks none of this:

- SSA dominance: every operand is defined before its use and in a region that the use can see; and every use is in a
  block: an op that a pass made, and then forgot, would keep what it uses alive;
- the bounds, as far as they are static, of `memref.reinterpret_cast`;
- the same and the result types of `memref.subview`, `tensor.extract_slice`, `tensor.insert_slice`,
  `tensor.parallel_insert_slice`;
- the shape of `tensor.pad` and the type of the element it yields;
- the values that branches hand to blocks, and that no block branches to the entry of its region;
- that no barrier is among iterations of `scf.forall` which cannot wait for each other;
- the device that a function names, where the module holds a machine;
- the attributes of arguments and results of functions: as many as there are of these, and the names of dimensions
  in them, `graph.dims`.

Faults are `VerifyException`s that name the op; `FaultyOp` carries the op itself for a located message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from xdsl.dialects import func
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StridedLayoutAttr,
    SymbolRefAttr,
    TensorType,
)
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.affine_maps import linear_form
from penstock.dialects.diagnostics import UnknownName, UserError, location_of, nearest_or_all
from penstock.dialects.verifier import Verifier

if TYPE_CHECKING:
    # Slow to import, and there by the time that an op of one is checked.
    from xdsl.dialects import gpu, memref, tensor

    from penstock.dialects.upstream.tensor import ParallelInsertSliceOp


class FaultyOp(VerifyException):
    """A verification fault and the op that has it."""

    def __init__(self, op: Operation, message: str, notes: Sequence[str] = ()):
        super().__init__(f"'{op.name}' {message}")
        self.op = op
        self.notes = tuple(notes)


def verify_module(module: Operation, valid: Collection[Operation] = (), new: Sequence[Operation] | None = None) -> None:
    """
    Check everything the docstring of this file lists; raises FaultyOp at the first fault. What `valid` has, of the ops
    of the module's own block, is not looked into, and of ops by themselves only those are checked that are `new`.
    """
    _verify_dominance(module, valid)
    for op in module.walk() if new is None else new:
        if (check := _CHECKS.get(op.name)) is not None:
            check(op)


# finding what is invalid


Invalid = tuple[Operation | None, str, Sequence[str]]
"""An operation, unless it is not known which one, what is wrong with it, and notes."""


def find_invalid(module: Operation, verifier: Verifier | None = None) -> Invalid | None:
    """
    The first operation that does not verify by xDSL's rules or ours, innermost first; None for a valid module.

    A `verifier` that has seen a module like it is quicker than a new one: it looks at what changed.
    """
    try:
        for valid, new in (verifier or Verifier()).check(module):
            verify_module(module, valid, new)
    except FaultyOp as error:
        return error.op, str(error), error.notes
    except Exception as error:
        if not _says_invalid(error):
            raise
        return _find_culprit(module) or (None, str(error), ())
    return None


def _says_invalid(error: Exception) -> bool:
    """Whether an exception of a verifier is about the IR: some of xDSL's raise ValueError, or Exception itself."""
    return isinstance(error, VerifyException | ValueError) or type(error) is Exception


def _find_culprit(module: Operation) -> Invalid | None:
    # The exception does not say which operation raised it, so the operations are asked one by one.
    for op in module.walk(region_first=True):
        try:
            op.verify(verify_nested_ops=False)
            for block in (block for region in op.regions for block in region.blocks):
                if not block.ops:
                    block.verify()
        except VerifyException as error:
            return op, f"'{op.name}' does not verify: {error}", _notes_on(error, op, module)
        except Exception as error:
            if not _says_invalid(error):
                raise
            return op, str(error), ()
    return None


def _notes_on(error: VerifyException, op: Operation, module: Operation) -> Sequence[str]:
    """The nearest name to one that is unknown."""
    if isinstance(error, UnknownName):
        return [error.note]
    if isinstance(op, func.CallOp):
        # Of a function that is verified by itself, the others are around it.
        around = module.parent_op() or module
        functions = [each.sym_name.data for each in around.walk() if isinstance(each, func.FuncOp)]
        callee = op.callee.string_value()
        return [] if callee in functions else [nearest_or_all(callee, functions, "the functions here")]
    return []


# SSA dominance


def _verify_dominance(module: Operation, valid: Collection[Operation] = ()) -> None:
    for region in module.regions:
        _verify_region(region, set(), valid)


def require_dominance(function: func.FuncOp) -> None:
    """Raise UserError, at the use, where a function uses a value that its definition does not dominate."""
    try:
        _verify_dominance(function)
    except FaultyOp as error:
        raise UserError(str(error), loc=location_of(error.op)) from None


def _verify_region(region: Region, outer: set[SSAValue], valid: Collection[Operation] = ()) -> None:
    blocks = list(region.blocks)
    dominance = DominanceInfo(region) if len(blocks) > 1 else None
    for block in blocks:
        visible = set(outer)
        if dominance is not None:
            for other in blocks:
                if other is not block and dominance.strictly_dominates(other, block):
                    visible.update(_defined_in(other))
        _verify_block(block, visible, valid)
        if (last := block.last_op) is not None and blocks[0] in last.successors:
            raise FaultyOp(last, "branches to the entry block of its region, which must have no predecessors")


def _defined_in(block: Block) -> list[SSAValue]:
    return [*block.args, *(result for op in block.ops for result in op.results)]


def _verify_block(block: Block, visible: set[SSAValue], valid: Collection[Operation]) -> None:
    visible.update(block.args)
    for op in block.ops:
        for number, operand in enumerate(op.operands):
            if operand not in visible:
                raise FaultyOp(op, _dominance_message(op, number, operand))
        if op.regions and op not in valid:
            outer = set[SSAValue]() if op.has_trait(IsolatedFromAbove) else visible
            for region in op.regions:
                _verify_region(region, outer)
        for result in op.results:
            for use in result.uses:
                if use.operation.parent is None:
                    raise FaultyOp(op, f"has a result that {use.operation.name} uses, which is in no block")
        visible.update(op.results)


def _dominance_message(op: Operation, number: int, operand: SSAValue) -> str:
    name = f"%{operand.name_hint}" if operand.name_hint else f"operand {number}"
    return f"uses {name}, whose definition does not dominate this use"


# slices and pads


def _check_slice(
    op: tensor.ExtractSliceOp | tensor.InsertSliceOp | ParallelInsertSliceOp | memref.SubviewOp, source: Sequence[int]
) -> tuple[list[int | SSAValue], list[int | SSAValue], list[int | SSAValue]]:
    """Check the static part of the bounds of a slice of a `source` shape; returns its offsets, sizes and strides."""
    offsets = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
    sizes = get_dynamic_index_list(op.static_sizes.get_values(), op.sizes, DYNAMIC_INDEX)
    strides = get_dynamic_index_list(op.static_strides.get_values(), op.strides, DYNAMIC_INDEX)
    if not len(offsets) == len(sizes) == len(strides) == len(source):
        raise FaultyOp(op, f"has {len(offsets)} offsets for {len(source)} dims")
    for dim, (bound, offset, size, stride) in enumerate(zip(source, offsets, sizes, strides, strict=True)):
        if isinstance(size, int) and size < 0:
            raise FaultyOp(op, f"takes {size} elements of dim {dim}")
        if isinstance(offset, int) and offset < 0:
            raise FaultyOp(op, f"begins at {offset} in dim {dim}")
        if bound == DYNAMIC_INDEX or not isinstance(size, int) or not isinstance(stride, int):
            continue
        first = offset if isinstance(offset, int) else 0
        last = first + (size - 1) * stride
        if size > 0 and not 0 <= last < bound:
            raise FaultyOp(op, f"reaches element {last} of dim {dim}, which has {bound}")
    return offsets, sizes, strides


def _static(sizes: Sequence[int | SSAValue]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else DYNAMIC_INDEX for size in sizes)


def _kept_dims(full: Sequence[int], reduced: Sequence[int]) -> list[tuple[int, ...]]:
    """Every way to drop dims of size 1 from `full` that leaves `reduced`, as the positions that are kept."""
    dropped = len(full) - len(reduced)
    units = [dim for dim, size in enumerate(full) if size == 1]
    if dropped < 0 or dropped > len(units):
        return []
    kept = [tuple(dim for dim in range(len(full)) if dim not in drop) for drop in combinations(units, dropped)]
    return [dims for dims in kept if [full[dim] for dim in dims] == list(reduced)]


def _check_extract_slice(op: tensor.ExtractSliceOp) -> None:
    source, result = op.source.type, op.result.type
    assert isa(source, TensorType)
    assert isa(result, TensorType)
    _, sizes, _ = _check_slice(op, source.get_shape())
    if source.element_type != result.element_type:
        raise FaultyOp(op, f"yields {result.element_type} from {source.element_type}")
    if not _kept_dims(_static(sizes), result.get_shape()):
        raise FaultyOp(op, f"yields {result}, but its sizes are {_spell(sizes)}")


def _check_insert_slice(op: tensor.InsertSliceOp | ParallelInsertSliceOp) -> None:
    source, dest = op.source.type, op.dest.type
    assert isa(source, TensorType)
    assert isa(dest, TensorType)
    _, sizes, _ = _check_slice(op, dest.get_shape())
    if source.element_type != dest.element_type:
        raise FaultyOp(op, f"inserts {source.element_type} into {dest.element_type}")
    if op.results and op.results[0].type != dest:
        raise FaultyOp(op, f"yields {op.results[0].type}, not the type of its destination {dest}")
    if not _kept_dims(_static(sizes), source.get_shape()):
        raise FaultyOp(op, f"inserts {source}, but its sizes are {_spell(sizes)}")


def _check_subview(op: memref.SubviewOp) -> None:
    source, result = op.source.type, op.result.type
    assert isa(source, MemRefType)
    assert isa(result, MemRefType)
    offsets, sizes, strides = _check_slice(op, source.get_shape())
    try:
        expected = type(op).infer_result_type(_strided(source), offsets, sizes, strides)
    except ValueError as error:
        raise FaultyOp(op, str(error)) from None
    if expected.element_type != result.element_type or expected.memory_space != result.memory_space:
        raise FaultyOp(op, f"yields {result}, expected {expected}")
    result = _strided(result)
    full_strides, strides_of_result = expected.get_strides(), result.get_strides()
    if full_strides is None or strides_of_result is None:
        raise FaultyOp(op, f"yields {result}, whose layout is not strided")
    for dims in _kept_dims(expected.get_shape(), result.get_shape()):
        if [full_strides[dim] for dim in dims] == list(
            strides_of_result
        ) and expected.get_offset() == result.get_offset():
            return
    raise FaultyOp(op, f"yields {result}, expected {expected}, or that without dims of size 1")


def _check_reinterpret(op: memref.ReinterpretCastOp) -> None:
    """That a view of known sizes stays inside the memory, where its elements are known to lie without gaps."""
    source = op.source.type
    given = (*op.static_offsets.get_values(), *op.static_sizes.get_values(), *op.static_strides.get_values())
    if not isa(source, MemRefType) or DYNAMIC_INDEX in (*source.get_shape(), *given) or source.layout != NoneAttr():
        return
    (offset,), sizes, strides = (each.get_values() for each in (op.static_offsets, op.static_sizes, op.static_strides))
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 not in sizes and not 0 <= offset <= last < (count := prod(source.get_shape())):
        raise FaultyOp(op, f"reaches elements {offset} to {last} of memory that has {count}")


def _strided(type: MemRefType) -> MemRefType:
    """The same type, with strides where its layout is a map that is linear in its dims and symbols."""
    if not isinstance(type.layout, AffineMapAttr) or len((layout := type.layout.data).results) != 1:
        return type
    dims, count = layout.num_dims, layout.num_dims + layout.num_symbols
    inputs = [AffineDimExpr(position) for position in range(count)]
    form = linear_form(layout.results[0].replace_dims_and_symbols(inputs[:dims], inputs[dims:]), count)
    if form is None:
        return type
    offset, coefficients = form
    strides = StridedLayoutAttr(coefficients[:dims], None if any(coefficients[dims:]) else offset)
    return MemRefType(type.element_type, type.shape, strides, type.memory_space)


def _check_pad(op: tensor.PadOp) -> None:
    source, result = op.source.type, op.result.type
    assert isa(source, TensorType)
    assert isa(result, TensorType)
    low, high = op.static_low.get_values(), op.static_high.get_values()
    for dim, (size, before, after, padded) in enumerate(
        zip(source.get_shape(), low, high, result.get_shape(), strict=True)
    ):
        if DYNAMIC_INDEX not in (size, before, after, padded) and size + before + after != padded:
            raise FaultyOp(
                op,
                f"makes dim {dim} {padded} long, but {before} + {size} + {after} is not {padded}",
            )
    if source.element_type != result.element_type:
        raise FaultyOp(op, f"yields {result.element_type} from {source.element_type}")
    yielded = op.region.block.last_op
    if yielded is None or yielded.name != "tensor.yield":
        return
    if [value.type for value in yielded.operands] != [result.element_type]:
        raise FaultyOp(op, f"yields an element that is not {result.element_type}")


def _spell(sizes: Sequence[int | SSAValue]) -> str:
    return "x".join(str(size) if isinstance(size, int) else "?" for size in sizes)


# barriers


def _check_barrier(op: gpu.BarrierOp) -> None:
    from penstock.dialects.upstream.gpu import BlockMappingAttr
    from penstock.dialects.upstream.scf import forall_around

    forall = forall_around(op)
    if forall is not None and forall.mapping is not None and isinstance(forall.mapping.data[0], BlockMappingAttr):
        raise FaultyOp(
            op,
            "is among iterations that are mapped to blocks, which cannot wait for each other",
            ["map them to threads, as in `mapping = [#gpu.thread<x>]`"],
        )


# branches


def _check_branch(op: Operation) -> None:
    from penstock.dialects.upstream.cf import handed_to_successors

    for successor, values in handed_to_successors(op):
        given, wanted = ([value.type for value in each] for each in (values, successor.args))
        if given != wanted:
            words = (", ".join(map(str, types)) or "nothing" for types in (given, wanted))
            raise FaultyOp(op, "hands {} to a block that takes {}".format(*words))


# functions


def _check_function(op: func.FuncOp) -> None:
    for kind, attributes, types in (
        ("argument", op.arg_attrs, op.function_type.inputs),
        ("result", op.res_attrs, op.function_type.outputs),
    ):
        if attributes is not None and len(attributes) != len(types):
            raise FaultyOp(op, f"has attributes for {len(attributes)} {kind}s, and {len(types)} {kind}s")
    device, module = op.attributes.get("device"), op.parent_op()
    if isinstance(device, SymbolRefAttr) and isinstance(module, ModuleOp):
        from penstock.dialects.machine import HOST, find_target

        target = find_target(module)
        known = [HOST] if target is None else [HOST, target.sym_name.data]
        # Without a machine in the module, the function may be for one that is attached later.
        if target is not None and device.string_value() not in known:
            note = nearest_or_all(device.string_value(), known, "the devices here")
            raise FaultyOp(op, f"runs on @{device.string_value()}, which is no device of this module", [note])
    given = [entry.data for attributes in (op.arg_attrs, op.res_attrs) if attributes for entry in attributes]
    if not any("graph.dims" in entry for entry in given):
        return
    # Only few modules have names of dimensions, and the graph dialect is slow to import.
    from penstock.dialects.graph.dims import dims_of

    try:
        for results in (False, True):
            dims_of(op, results=results)
    except VerifyException as error:
        raise FaultyOp(op, f"has graph.dims that do not fit: {error}") from None


_CHECKS: dict[str, Callable[..., None]] = {
    "cf.br": _check_branch,
    "cf.cond_br": _check_branch,
    "cf.switch": _check_branch,
    "func.func": _check_function,
    "gpu.barrier": _check_barrier,
    "memref.reinterpret_cast": _check_reinterpret,
    "memref.subview": _check_subview,
    "tensor.extract_slice": _check_extract_slice,
    "tensor.insert_slice": _check_insert_slice,
    "tensor.parallel_insert_slice": _check_insert_slice,
    "tensor.pad": _check_pad,
}
"""By the names of ops, so that no dialect is imported for them."""
