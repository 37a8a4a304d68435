"""One function on tensors, whose values all are slices of buffers, rebuilt op by op as a function on memrefs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref, scf, tensor
from xdsl.dialects.builtin import (
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from penstock.dialects import mem
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import memref_of, static_strides
from penstock.dialects.upstream.scf import ForallOp, InParallelOp
from penstock.dialects.upstream.tensor import Insertion, ParallelInsertSliceOp
from penstock.passes.analysis.memory.stated_scopes import is_explicit, is_explicit_copy, stated
from penstock.passes.analysis.strides import (
    collapsed_strides,
    contiguous_strides,
    expanded_strides,
    kept_dims,
    reassociation,
    reassociation_attribute,
)
from penstock.passes.generics import first_of, structured
from penstock.passes.shapes import loops, shape_of
from penstock.passes.tensor.bufferization.assignment import (
    BranchResult,
    BufferAssignment,
    InsertionSlice,
    OutArgument,
    StructuredOp,
    is_tensor,
    is_window_pad,
    mixed_slice,
    same,
    window_of,
)
from penstock.passes.tensor.bufferization.destinations import carried, ignores_input


@lru_cache(maxsize=4096)
def memref_like(type: Attribute) -> MemRefType[Attribute]:
    """The contiguous off-chip memref of a tensor type."""
    assert isa(type, TensorType)
    return MemRefType(type.element_type, type.shape)


def memref_types(types: Sequence[Attribute]) -> list[Attribute]:
    """The types with every tensor as a contiguous off-chip memref."""
    return [memref_like(type) if isa(type, TensorType) else type for type in types]


def slice_view(
    builder: Builder,
    source: SSAValue,
    offsets: Sequence[int | SSAValue],
    sizes: Sequence[int],
    steps: Sequence[int],
    kept: Sequence[int],
) -> SSAValue:
    """The slice of a memref, without the dims that are not `kept`; the memref itself if that is all of it."""
    type = memref_of(source)
    is_whole = tuple(sizes) == type.get_shape() and len(kept) == len(sizes)
    if is_whole and all(isinstance(at, int) and at == 0 for at in offsets):
        return source
    full = memref.SubviewOp.infer_result_type(type, offsets, sizes, steps)
    layout = full.layout
    assert isinstance(layout, StridedLayoutAttr)
    reduced = MemRefType(
        full.element_type,
        [sizes[dim] for dim in kept],
        StridedLayoutAttr([layout.strides.data[dim] for dim in kept], layout.offset),
        full.memory_space,
    )
    return builder.insert(memref.SubviewOp.get(source, offsets, sizes, steps, reduced)).result


def reshape_view(builder: Builder, source: SSAValue, shape: Sequence[int]) -> SSAValue:
    """
    The elements of a memref in another shape, through `memref.collapse_shape` and `memref.expand_shape`.

    Raises ValueError where its strides cannot express that.
    """
    type = memref_of(source)
    if type.get_shape() == tuple(shape):
        return source
    strides = static_strides(type)
    groups = reassociation(type.get_shape(), shape)
    if loose := _loose_units(type.get_shape(), strides, [ours for ours, _ in groups]):
        zeros: list[int | SSAValue] = [0] * len(strides)
        kept = [dim for dim in range(len(strides)) if dim not in loose]
        squeezed = slice_view(builder, source, zeros, type.get_shape(), [1] * len(strides), kept)
        return reshape_view(builder, squeezed, shape)
    collapsed = collapsed_strides(type.get_shape(), strides, [ours for ours, _ in groups])
    if collapsed is None:
        raise ValueError(f"{type} has no view of the shape {list(shape)}")
    if len(collapsed) != len(strides):
        middle = [prod(type.get_shape()[dim] for dim in ours) for ours, _ in groups]
        collapse = memref.CollapseShapeOp(
            operands=[source],
            result_types=[_retyped(type, middle, collapsed)],
            properties={"reassociation": reassociation_attribute([ours for ours, _ in groups])},
        )
        source = builder.insert(collapse).result
    if len(collapsed) != len(shape):
        expanded = expanded_strides(collapsed, shape, [theirs for _, theirs in groups])
        expand = memref.ExpandShapeOp(
            operands=[source, []],
            result_types=[_retyped(type, shape, expanded)],
            properties={
                "reassociation": reassociation_attribute([theirs for _, theirs in groups]),
                "static_output_shape": DenseArrayBase.from_list(i64, shape),
            },
        )
        source = builder.insert(expand).result
    return source


def _loose_units(shape: Sequence[int], strides: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """
    The dims of size 1 that are in a group before others and do not step over them: MLIR does not collapse those.

    Their strides mean nothing, so that a slice may do without them.
    """
    loose: list[int] = []
    for group in groups:
        inner = [dim for dim in group if shape[dim] != 1]
        reach = strides[inner[-1]] if inner else 1
        for dim in reversed(group[: group.index(inner[-1]) + 1] if inner else []):
            if shape[dim] == 1 and strides[dim] != reach:
                loose.append(dim)
            elif shape[dim] != 1:
                reach = strides[dim] * shape[dim]
    return loose


def _retyped(type: MemRefType[Attribute], shape: Sequence[int], strides: Sequence[int]) -> MemRefType[Attribute]:
    layout = type.layout if isinstance(type.layout, NoneAttr) else StridedLayoutAttr(strides, type.get_offset())
    return MemRefType(type.element_type, shape, layout, type.memory_space)


def plain_view(builder: Builder, source: SSAValue) -> SSAValue:
    """
    The same memref with the strides of its dims of size 1 as they would be if it were contiguous from there on.

    They do not matter, but they are part of the type: without them a slice that is contiguous looks so.
    """
    type = memref_of(source)
    shape, strides = type.get_shape(), static_strides(type)
    if 0 in shape:
        # No element has a place, so no stride says anything.
        return source
    squeezed = [size for size in shape if size != 1]
    moving = [stride for size, stride in zip(shape, strides, strict=True) if size != 1]
    groups = [theirs for _, theirs in reassociation(squeezed, shape)]
    plain = expanded_strides(moving, shape, groups) if groups else contiguous_strides(shape)
    if plain == strides:
        return source
    return reshape_view(builder, reshape_view(builder, source, squeezed), shape)


def shape_only_view(builder: Builder, source: SSAValue, shape: Sequence[int]) -> SSAValue:
    """
    A memref of `shape` with strides 0 on the first element of `source`: the window of a pooling, whose elements
    are never read, so that it needs no storage of its own.

    The strides are an operand, since MLIR has no type of strides that are known to be 0.
    """
    type = memref_of(source)
    layout = StridedLayoutAttr([None] * len(shape))
    view = MemRefType(type.element_type, shape, layout, type.memory_space)
    zero = builder.insert(arith.ConstantOp.from_int_and_width(0, IndexType())).result
    strides: list[SSAValue | int] = [zero] * len(shape)
    return builder.insert(memref.ReinterpretCastOp.from_dynamic(source, [0], list(shape), strides, view)).result


Calls = Callable[[str, Sequence[SSAValue], func.CallOp], None]
"""Told of every call that is built: the callee, the buffers passed (arguments, then results), and the call."""

Constants = Callable[[DenseIntOrFPElementsAttr], memref.GetGlobalOp]
"""What reads a constant tensor from memory."""


class Rebuild:
    """
    The body of a function in destination-passing style.

    `arguments` and `outs` are the new values of the function's arguments and the buffers for its results.
    """

    def __init__(
        self,
        assignment: BufferAssignment,
        block: Block,
        arguments: Sequence[SSAValue],
        outs: Mapping[int, SSAValue],
        calls: Calls,
        constants: Constants,
    ):
        old = assignment.function.body.block
        self._assignment = assignment
        self._values: dict[SSAValue, SSAValue] = dict(zip(old.args, arguments, strict=True))
        self._outs = outs
        self._calls = calls
        self._constants = constants
        self._current: Operation = assignment.function
        self._builder = Builder(InsertPoint.at_end(block), operation_insertion_handler=[self._keep_location])
        self._ops(old)

    def _keep_location(self, op: Operation) -> None:
        op.location = self._current.location

    def _ops(self, block: Block) -> None:
        for op in block.ops:
            self._current = op
            self._op(op)

    def _op(self, op: Operation) -> None:
        """Build the memref form of `op`, and note the memref of each tensor it defines."""
        match op:
            case StructuredOp() if is_explicit_copy(op):
                self._copy(mem.CopyOp(self._values[op.inputs[0]], self._values[op.outputs[0]]))
                self._values[op.results[0]] = self._values[op.outputs[0]]
            case StructuredOp() if op.res:
                self._structured(op)
            case tensor.EmptyOp() | tensor.FromElementsOp() | tensor.SplatOp():
                self._fresh(op)
            case arith.ConstantOp() if is_tensor(op.result):
                self._constant(op)
            case tensor.PadOp():
                self._pad(op)
            case tensor.ExtractSliceOp():
                self._extract_slice(op)
            case tensor.InsertSliceOp():
                self._insert_slice(op)
                self._values[op.result] = self._values[op.dest]
            case ParallelInsertSliceOp():
                self._insert_slice(op)
            case tensor.ExpandShapeOp() | tensor.CollapseShapeOp() | tensor.ReshapeOp() | tensor.CastOp():
                source = self._values[op.operands[0]]
                self._define(op.results[0], reshape_view(self._builder, source, shape_of(op.results[0])))
            case tensor.InsertOp():
                dest = self._values[op.dest]
                indices = [self._values[index] for index in op.indices]
                self._builder.insert(memref.StoreOp.get(self._values[op.scalar], dest, indices))
                self._values[op.result] = dest
            case tensor.ExtractOp():
                indices = [self._values[index] for index in op.indices]
                load = self._builder.insert(memref.LoadOp.get(self._values[op.tensor], indices))
                self._define(op.result, load.res)
            case tensor.DimOp():
                self._dim(op)
            case func.CallOp() if any(is_tensor(value) for value in (*op.operands, *op.results)):
                self._call(op)
            case func.ReturnOp():
                self._return(op)
            case scf.ForOp():
                self._for(op)
            case scf.IfOp() if any(is_tensor(value) for value in op.results):
                self._if(op)
            case ForallOp():
                self._forall(op)
            case _:
                self._copy_op(op)

    def _define(self, old: SSAValue, new: SSAValue) -> None:
        self._values[old] = new
        if new.name_hint is None and old.name_hint is not None:
            new.name_hint = old.name_hint
        if isinstance(old, BlockArgument) and isinstance(new, BlockArgument):
            new.location = old.location

    def _index(self, value: int) -> SSAValue:
        return self._builder.insert(arith.ConstantOp(IntegerAttr(value, IndexType()))).result

    # fresh values

    def _buffer(self, value: SSAValue) -> SSAValue:
        """The buffer of a fresh value: a new one, or a part of the one that it is assigned to."""
        target = self._assignment.assigned.get(value)
        match target:
            case None:
                alloc = self._builder.insert(memref.AllocOp([], [], memref_like(value.type)))
                alloc.attributes.update(stated(value))
                made = alloc.memref
            case OutArgument(index=index):
                made = reshape_view(self._builder, self._outs[index], shape_of(value))
            case BranchResult(result=result):
                made = reshape_view(self._builder, self._values[result], shape_of(value))
            case InsertionSlice(insertion=insertion, anchor=anchor):
                part = self._part(insertion, self._values[anchor])
                made = plain_view(self._builder, reshape_view(self._builder, part, shape_of(value)))
        self._define(value, made)
        return made

    def _part(self, insertion: Insertion, dest: SSAValue) -> SSAValue:
        offsets, sizes, steps = mixed_slice(insertion)
        kept = kept_dims(sizes, shape_of(insertion.source))
        return slice_view(self._builder, dest, self._mapped(offsets), sizes, steps, kept)

    def _mapped(self, offsets: Sequence[int | SSAValue]) -> list[int | SSAValue]:
        return [at if isinstance(at, int) else self._values[at] for at in offsets]

    def _fresh(self, op: tensor.EmptyOp | tensor.FromElementsOp | tensor.SplatOp) -> None:
        value = op.results[0]
        if _is_never_read(value):
            return
        buffer = self._buffer(value)
        if isinstance(op, tensor.SplatOp):
            self._fill(buffer, op.input)
        elif isinstance(op, tensor.FromElementsOp):
            numbers: dict[int, SSAValue] = {}
            for position, element in enumerate(op.elements):
                at: list[SSAValue] = []
                for size in reversed(shape_of(value)):
                    position, index = divmod(position, size)
                    at.insert(0, numbers[index] if index in numbers else numbers.setdefault(index, self._index(index)))
                self._builder.insert(memref.StoreOp.get(self._values[element], buffer, at))

    def _fill(self, buffer: SSAValue, scalar: SSAValue) -> None:
        output = buffer, loops(memref_of(buffer).get_num_dims())
        if not isinstance(scalar.owner, arith.ConstantOp):
            source = (self._values[scalar], ())
            self._builder.insert(structured([source], output, first_of))
            return
        constant = scalar.owner
        self._builder.insert(structured([], output, lambda body, _: body.emit(constant.clone())))

    def _constant(self, op: arith.ConstantOp) -> None:
        if not _is_never_read(op.result):
            assert isa(op.value, DenseIntOrFPElementsAttr)
            self._define(op.result, self._builder.insert(self._constants(op.value)).memref)

    def _pad(self, op: tensor.PadOp) -> None:
        for inner in op.region.block.ops:
            if not isinstance(inner, tensor.YieldOp):
                self._builder.insert(inner.clone(self._values))
        if not is_window_pad(op.result):
            self._window(op, [0] * len(shape_of(op.result)), self._buffer(op.result))

    def _window(self, pad: tensor.PadOp, at: Sequence[int | SSAValue], dest: SSAValue) -> None:
        """Copy the box of the shape of `dest` that begins at `at` in the padded tensor."""
        offsets: list[int | SSAValue] = []
        for offset, low in zip(at, pad.static_low.get_values(), strict=True):
            if isinstance(offset, int):
                offsets.append(offset - low)
            elif low == 0:
                offsets.append(self._values[offset])
            else:
                less = arith.SubiOp(self._values[offset], self._index(low))
                offsets.append(self._builder.insert(less).result)
        last = pad.region.block.last_op
        assert isinstance(last, tensor.YieldOp)
        padding = self._values[last.operands[0]]
        source = self._values[pad.source]
        copy = mem.CopyOp(source, dest, source_offsets=offsets, padding=padding)
        self._copy(copy)
        # What slices the padded tensor is there for what reads it: the pad is what is done.
        copy.location = pad.location

    def _copy(self, copy: mem.CopyOp) -> None:
        if is_explicit(self._current):
            copy.attributes[mem.EXPLICIT] = UnitAttr()
        self._builder.insert(copy)

    # slices

    def _extract_slice(self, op: tensor.ExtractSliceOp) -> None:
        offsets, sizes, steps = mixed_slice(op)
        kept = kept_dims(sizes, shape_of(op.result))
        pad = window_of(op.result)
        if pad is None:
            source = self._values[op.source]
            self._define(op.result, slice_view(self._builder, source, self._mapped(offsets), sizes, steps, kept))
            return
        box = self._buffer(op.result)
        if len(kept) != len(sizes):
            self._window(pad, offsets, reshape_view(self._builder, box, sizes))
        else:
            self._window(pad, offsets, box)

    def _insert_slice(self, op: Insertion) -> None:
        source, dest = self._values[op.source], self._values[op.dest]
        if self._assignment.is_in_place(op):
            return
        offsets, sizes, steps = mixed_slice(op)
        whole = tuple(sizes) == shape_of(op.dest) and tuple(sizes) == shape_of(op.source)
        if whole:
            self._builder.insert(mem.CopyOp(source, dest))
        elif len(sizes) == len(shape_of(op.source)) and all(step == 1 for step in steps):
            self._builder.insert(mem.CopyOp(source, dest, dest_offsets=self._mapped(offsets)))
        else:
            self._builder.insert(mem.CopyOp(source, self._part(op, dest)))

    # structured ops, calls and control flow

    def _structured(self, op: StructuredOp) -> None:
        operands: list[SSAValue] = []
        for index, value in enumerate(op.operands):
            if value in self._values:
                operands.append(self._values[value])
            else:
                assert index < len(op.inputs)
                operands.append(self._shape_only(op, value))
        region = Region()
        op.body.clone_into(region, value_mapper=self._values)
        built = type(op).create(
            operands=operands,
            properties=op.properties,
            attributes=op.attributes,
            regions=[region],
        )
        self._builder.insert(built)
        for result, output in zip(op.res, op.outputs, strict=True):
            self._values[result] = self._values[output]

    def _shape_only(self, op: StructuredOp, value: SSAValue) -> SSAValue:
        wanted = memref_like(value.type)
        for other in op.operands:
            found = self._values.get(other)
            if found is not None and isa(found.type, MemRefType) and found.type.get_offset() == 0:
                # the offset of a reinterpretation counts from the start of the allocation
                if found.type.element_type == wanted.element_type:
                    return shape_only_view(self._builder, found, wanted.get_shape())
        one = memref.AllocOp([], [], MemRefType(wanted.element_type, [1]))
        return shape_only_view(self._builder, self._builder.insert(one).memref, wanted.get_shape())

    def _dim(self, op: tensor.DimOp) -> None:
        index = op.index.owner
        if not isinstance(index, arith.ConstantOp) or not isinstance(index.value, IntegerAttr):
            raise UserError("the number of the dim must be a constant", loc=location_of(op))
        self._define(op.result, self._index(shape_of(op.source)[index.value.value.data]))

    def _call(self, op: func.CallOp) -> None:
        buffers = [self._buffer(value) for value in op.results if is_tensor(value)]
        passed = [*(self._values[value] for value in op.operands), *buffers]
        operands = [
            plain_view(self._builder, value) if isinstance(value.type, MemRefType) else value for value in passed
        ]
        scalars = [value for value in op.results if not is_tensor(value)]
        call = func.CallOp(op.callee, operands, [value.type for value in scalars])
        call.attributes.update(op.attributes)
        self._builder.insert(call)
        self._calls(op.callee.string_value(), operands, call)
        for old, new in zip(scalars, call.results, strict=True):
            self._define(old, new)

    def _return(self, op: func.ReturnOp) -> None:
        for index, value in enumerate(op.arguments):
            if is_tensor(value) and not same(self._assignment.buffer_slice(value), self._assignment.result(index)):
                self._builder.insert(mem.CopyOp(self._values[value], self._outs[index]))
        scalars = [self._values[value] for value in op.arguments if not is_tensor(value)]
        self._builder.insert(func.ReturnOp(*scalars))

    def _for(self, op: scf.ForOp) -> None:
        old = op.body.block
        kept = [number for number, value in enumerate(op.iter_args) if not is_tensor(value)]
        block = Block(arg_types=[old.args[0].type, *(op.iter_args[number].type for number in kept)])
        lower, upper, step = (self._values[value] for value in (op.lb, op.ub, op.step))
        loop = scf.ForOp(lower, upper, step, [self._values[op.iter_args[n]] for n in kept], Region(block))
        loop.attributes.update(op.attributes)
        self._builder.insert(loop)
        for number, value in enumerate(op.iter_args):
            if is_tensor(value):
                self._values[old.args[1 + number]] = self._values[op.results[number]] = self._values[value]
        self._define(old.args[0], block.args[0])
        for position, number in enumerate(kept):
            self._define(old.args[1 + number], block.args[1 + position])
            self._define(op.results[number], loop.results[position])
        outer, self._builder.insertion_point = self._builder.insertion_point, InsertPoint.at_end(block)
        self._ops(old)
        last = old.last_op
        assert isinstance(last, scf.YieldOp)
        self._yield(last, kept)
        self._builder.insertion_point = outer

    def _if(self, op: scf.IfOp) -> None:
        """The buffers of what is a tensor are there before the branches, which write into them."""
        for value in op.results:
            if is_tensor(value):
                self._buffer(value)
        scalars = [number for number, value in enumerate(op.results) if not is_tensor(value)]
        outer = self._builder.insertion_point
        branches: list[Region] = []
        for region in op.regions:
            block, old = Block(), region.block
            branches.append(Region(block))
            self._builder.insertion_point = InsertPoint.at_end(block)
            self._ops(old)
            last = old.last_op
            assert isinstance(last, scf.YieldOp)
            self._yield(last, scalars)
        self._builder.insertion_point = outer
        types = [op.results[number].type for number in scalars]
        choice = scf.IfOp(self._values[op.cond], types, branches[0], branches[1])
        choice.attributes.update(op.attributes)
        self._builder.insert(choice)
        for number, result in zip(scalars, choice.results, strict=True):
            self._define(op.results[number], result)

    def _yield(self, last: scf.YieldOp, scalars: Sequence[int]) -> None:
        """Copy the tensors that are yielded to where they belong, unless they are there, and yield the scalars."""
        for _, value, becomes in carried(last):
            if not same(self._assignment.buffer_slice(value), self._assignment.buffer_slice(becomes)):
                self._builder.insert(mem.CopyOp(self._values[value], self._values[becomes]))
        self._builder.insert(scf.YieldOp(*(self._values[last.arguments[number]] for number in scalars)))

    def _forall(self, op: ForallOp) -> None:
        block = Block(arg_types=[index.type for index in op.indices])
        for old, new in zip(op.indices, block.args, strict=True):
            self._define(old, new)
        for shared, result, output in zip(op.shared, op.res, op.outputs, strict=True):
            self._values[shared] = self._values[result] = self._values[output]
        outer, self._builder.insertion_point = self._builder.insertion_point, InsertPoint.at_end(block)
        self._ops(op.region.block)
        self._builder.insertion_point = outer
        lower, upper, step = (self._mapped(each) for each in (op.lower_bounds, op.upper_bounds, op.steps))
        loop = ForallOp(lower, upper, step, (), Region(block), list(op.mapping or ()))
        loop.attributes.update(op.attributes)
        self._builder.insert(loop)

    def _copy_op(self, op: Operation) -> None:
        """An op without tensors, whose regions may have some."""
        if isinstance(op, scf.YieldOp) and _is_lowered_apart(op.parent_op()):
            return
        if isinstance(op, InParallelOp):
            self._ops(op.region.block)
            return
        copied = op.clone_without_regions(self._values)
        self._builder.insert(copied)
        outer = self._builder.insertion_point
        for region, new in zip(op.regions, copied.regions, strict=True):
            for block in region.blocks:
                built = Block(arg_types=block.arg_types)
                new.add_block(built)
                for old_arg, new_arg in zip(block.args, built.args, strict=True):
                    self._define(old_arg, new_arg)
                self._builder.insertion_point = InsertPoint.at_end(built)
                self._ops(block)
        self._builder.insertion_point = outer


def _is_lowered_apart(op: Operation | None) -> bool:
    """Whether what an op yields is dealt with where the op is."""
    return isinstance(op, scf.ForOp) or (isinstance(op, scf.IfOp) and any(is_tensor(value) for value in op.results))


def _is_never_read(value: SSAValue) -> bool:
    """Whether nothing but the shape of a fresh value is used, so that it needs no storage."""
    return all(
        isinstance(use.operation, tensor.DimOp)
        or (isinstance(use.operation, tensor.ReshapeOp) and use.index == 1)
        or (
            isinstance(use.operation, StructuredOp)
            and use.index < len(use.operation.inputs)
            and ignores_input(use.operation, use.index)
        )
        for use in value.uses
    )
