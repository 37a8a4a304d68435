# SPDX-License-Identifier: Apache-2.0
"""One function on tensors, whose values all are slices of buffers, rebuilt op by op as a function on memrefs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref, scf, tensor
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    TensorType,
    UnitAttr,
)
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from penstock.dialects import mem
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import memref_of
from penstock.dialects.upstream.scf import ForallOp, InParallelOp
from penstock.dialects.upstream.tensor import Insertion, ParallelInsertSliceOp
from penstock.passes.analysis.kernels import HOST, device_of
from penstock.passes.analysis.memory.stated_scopes import is_explicit, is_explicit_copy, stated
from penstock.passes.analysis.strides import (
    kept_dims,
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
from penstock.passes.views import plain_view, reshape_view, shape_only_view, slice_view


@lru_cache(maxsize=4096)
def memref_like(type: Attribute) -> MemRefType[Attribute]:
    """The contiguous off-chip memref of a tensor type."""
    assert isa(type, TensorType)
    return MemRefType(type.element_type, type.shape)


def memref_types(types: Sequence[Attribute]) -> list[Attribute]:
    """The types with every tensor as a contiguous off-chip memref."""
    return [memref_like(type) if isa(type, TensorType) else type for type in types]


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
        self._is_of_host = device_of(assignment.function) in (None, HOST)
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
            case scf.WhileOp() if any(is_tensor(value) for value in op.results):
                self._while(op)
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
        arguments = list(self._assignment.function.body.block.args)
        # What a machine computes is moved into its scopes: what is off chip stays where it is.
        places = [*op.operands, *arguments] if self._is_of_host else [*arguments, *op.operands]
        for other in places:
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

    def _while(self, op: scf.WhileOp) -> None:
        kept = [number for number, value in enumerate(op.arguments) if not is_tensor(value)]
        types = [op.arguments[number].type for number in kept]
        for number, value in enumerate(op.arguments):
            if is_tensor(value):
                arguments = (region.block.args[number] for region in op.regions)
                self._values.update(dict.fromkeys((*arguments, op.results[number]), self._values[value]))
        outer = self._builder.insertion_point
        blocks: list[Block] = []
        for region in op.regions:
            old, block = region.block, Block(arg_types=types)
            blocks.append(block)
            for position, number in enumerate(kept):
                self._define(old.args[number], block.args[position])
            self._builder.insertion_point = InsertPoint.at_end(block)
            self._ops(old)
            last = old.last_op
            if isinstance(last, scf.ConditionOp):
                handed = [self._values[last.args[number]] for number in kept]
                self._builder.insert(scf.ConditionOp(self._values[last.condition], *handed))
            else:
                assert isinstance(last, scf.YieldOp)
                self._yield(last, kept)
        self._builder.insertion_point = outer
        given = [self._values[op.arguments[number]] for number in kept]
        loop = scf.WhileOp(given, types, Region(blocks[0]), Region(blocks[1]))
        loop.attributes.update(op.attributes)
        self._builder.insert(loop)
        for number, result in zip(kept, loop.results, strict=True):
            self._define(op.results[number], result)

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
        if isinstance(op, scf.YieldOp | scf.ConditionOp) and _is_lowered_apart(op.parent_op()):
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
    return isinstance(op, scf.ForOp) or (
        isinstance(op, scf.IfOp | scf.WhileOp) and any(is_tensor(value) for value in op.results)
    )


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
