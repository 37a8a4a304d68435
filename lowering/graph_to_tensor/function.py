# SPDX-License-Identifier: Apache-2.0
"""Lowers the body of one function: groups become kernels and calls of them, the rest views."""

from __future__ import annotations

import re
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from xdsl.dialects import arith, cf, scf, tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    UNKNOWN_LOC,
    AnyFloat,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FloatAttr,
    FunctionType,
    IndexType,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    StringAttr,
    TensorType,
    i1,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.functions import WEIGHT
from penstock.dialects.locations import location_of_value
from penstock.dialects.mem import EXPLICIT
from penstock.dialects.upstream.cf import TOO_MANY_TRIPS
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, KernelParameter, lowering_of
from penstock.lowering.graph_to_tensor.shape import emit_concat, emit_slice
from penstock.passes.graph.values import is_view
from penstock.passes.isomorphic_kernels import structure_of
from penstock.passes.shapes import element_of, shape_of, signless, tensor_type
from penstock.passes.tensor.reshape import emit_reshape

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.]")
"""What names of weights may have in them and names of values may not."""

_OURS = graph.GraphOp | graph.FusedOp | graph.IfOp | graph.LoopOp | graph.KernelOp


def is_graph_op(op: Operation) -> bool:
    """Whether `op` is one that leaves at this lowering."""
    return isinstance(op, _OURS) or lowering_of(type(op)) is not None


@dataclass
class Kernels:
    """The kernel functions of a module; structurally identical ones are one function."""

    taken: set[str]
    functions: list[FuncOp] = field(default_factory=list[FuncOp])
    _by_structure: dict[Hashable, FuncOp] = field(default_factory=dict[Hashable, FuncOp])

    def function(self, block: Block, location: LocationAttr, names: Mapping[SSAValue, str]) -> FuncOp:
        """
        The function with the body `block`, which is new or was there before.

        A new one takes its location, and the names of its values, which play no part in the comparison.
        """
        region = Region(block)
        structure, _ = structure_of(region, located=False)
        if (found := self._by_structure.get(structure)) is not None:
            return found
        last = block.last_op
        assert isinstance(last, ReturnOp)
        results = [value.type for value in last.arguments]
        kernel = FuncOp(self._name(), (block.arg_types, results), region, "private")
        kernel.location = location
        for value, name in names.items():
            value.name_hint = name
        self._by_structure[structure] = kernel
        self.functions.append(kernel)
        return kernel

    def _name(self) -> str:
        number = len(self.functions)
        while (name := f"fused_{number}") in self.taken:
            number += 1
        self.taken.add(name)
        return name


class FunctionLowering:
    """Rewrites the body of one function; its weights become arguments after its own."""

    def __init__(self, func: FuncOp, kernels: Kernels):
        self._func = func
        self._kernels = kernels
        self._entry = Block()
        self._block = self._entry
        """Where ops are added: the body of the function, or a branch inside it."""
        self._location: LocationAttr = UNKNOWN_LOC
        self._values: dict[SSAValue, SSAValue] = {}
        self._weights: dict[str, SSAValue] = {}
        self._views: dict[KernelParameter, SSAValue] = {}

    def run(self) -> None:
        """Replace the body and the type of the function."""
        old = self._func.body.block
        for argument in old.args:
            self._values[argument] = self._argument(argument)
        for op in old.ops:
            self._location = op.location
            self._lower(op)
        self._func.body.detach_block(old)
        old.erase(safe_erase=False)
        self._func.body.add_block(self._block)
        last = self._block.last_op
        assert last is not None
        results = [value.type for value in last.operands]
        self._func.function_type = FunctionType.from_lists(self._block.arg_types, results)
        if self._weights:
            count = len(self._block.args) - len(self._weights)
            own = self._func.arg_attrs
            attributes = list(own) if own is not None else [DictionaryAttr({})] * count
            attributes += [DictionaryAttr({WEIGHT: StringAttr(name)}) for name in self._weights]
            self._func.arg_attrs = ArrayAttr(attributes)

    def _lower(self, op: Operation) -> None:
        match op:
            case graph.ConstantOp():
                # Made where it is used: a number that only kernels read is written into their bodies.
                pass
            case graph.FusedOp():
                members = [member for member in op.body.block.ops if member is not op.terminator]
                outside: dict[SSAValue, SSAValue] = dict(zip(op.body.block.args, op.inputs, strict=True))
                self._call(op, members, outside, op.terminator.values, op.outputs)
            case graph.IfOp():
                self._if(op)
            case graph.LoopOp():
                self._loop(op)
            case graph.ReshapeOp() | graph.LayoutTransformOp() if is_view(op):
                shape = shape_of(op.result)
                self._values[op.result] = emit_reshape(self._emit, self._value(op.x), shape)
            case graph.SliceOp() if is_view(op):
                self._values[op.result] = emit_slice(self._emit, op, self._value(op.x))
            case graph.IdentityOp():
                self._values[op.result] = self._value(op.x)
            case graph.KernelOp():
                types = [_below_graph(result) for result in op.outputs]
                call = CallOp(op.callee, [self._value(operand) for operand in op.inputs], types)
                call.location = self._location
                self._block.add_op(call)
                for result, value in zip(op.outputs, call.results, strict=True):
                    value.name_hint = result.name_hint
                    self._values[result] = value
            case graph.ConcatOp():
                parts = [self._value(part) for part in op.inputs]
                self._values[op.result] = emit_concat(self._emit, op, parts)
            case _ if is_graph_op(op):
                outside = {operand: operand for operand in op.operands}
                self._call(op, [op], outside, op.results, op.results)
            case _:
                self._keep(op)

    def _call(
        self,
        op: Operation,
        members: Sequence[Operation],
        outside: Mapping[SSAValue, SSAValue],
        yielded: Sequence[SSAValue],
        results: Sequence[SSAValue],
    ) -> None:
        """Build the kernel of a group `op`, and let `results` be what a call of it returns for `yielded`."""
        builder = KernelBuilder(outside)
        for member in members:
            builder.lower(member)
        returned = [builder.result(value).tensor for value in yielded]
        builder.block.add_op(ReturnOp(*returned))
        # A group has the location of its last op, and is lowered as that of what it yields first.
        self._location = location_of_value(yielded[0])
        arguments = [self._view(parameter) for parameter in builder.parameters]
        kernel = self._kernels.function(builder.block, self._location, builder.names)
        call = CallOp(kernel.sym_name.data, arguments, kernel.function_type.outputs.data)
        call.location = self._location
        if EXPLICIT in op.attributes:
            call.attributes[EXPLICIT] = op.attributes[EXPLICIT]
        self._block.add_op(call)
        for result, value in zip(results, call.results, strict=True):
            value.name_hint = result.name_hint
            self._values[result] = emit_reshape(self._emit, value, shape_of(result))

    def _if(self, op: graph.IfOp) -> None:
        """Lower the branches to those of an `scf.if`, where what they read of the outside is read as it is."""
        flag = self._number(op.condition)
        inputs = [self._value(value) for value in op.inputs]
        branches = (Block(), Block())
        for region, block in zip(op.regions, branches, strict=True):
            with self._inside(block):
                self._values.update(zip(region.block.args, inputs, strict=True))
                self._emit_last(scf.YieldOp(*self._yielded(region.block)))
        self._location = op.location
        types = [_below_graph(result) for result in op.outputs]
        self._results(op.outputs, scf.IfOp(flag, types, Region(branches[0]), Region(branches[1])))

    @contextmanager
    def _inside(self, block: Block) -> Generator[None]:
        """Ops are added to `block`."""
        outer, location, self._block = self._block, self._location, block
        yield
        self._block, self._location = outer, location

    def _yielded(self, block: Block) -> list[SSAValue]:
        """Lower the ops of a block, and return what ends it with."""
        last = block.last_op
        assert isinstance(last, graph.YieldOp)
        for op in block.ops:
            self._location = op.location
            if op is not last:
                self._lower(op)
        return [self._value(value) for value in last.values]

    def _results(self, of: Sequence[SSAValue], op: Operation, skipped: int = 0) -> None:
        """Append an op whose results, but for the first ones, are what the values `of` become."""
        self._emit_last(op)
        for old, new in zip(of, op.results[skipped:], strict=True):
            new.name_hint = old.name_hint
            self._values[old] = new

    # Loops.

    def _loop(self, op: graph.LoopOp) -> None:
        """
        A loop that carries tensors: of lines of results those that are not yet written, too.

        It is an `scf.for`, or where a run decides how often, an `scf.while` that hands on what it is given.
        """
        carried = [self._value(value) for value in op.inits]
        for result in op.outputs[len(carried) :]:
            type = _below_graph(result)
            if op.is_counted:
                carried.append(self._emit(tensor.EmptyOp((), type)))
            else:
                zero = self._emit(arith.ConstantOp(_zero(type.element_type)))
                carried.append(self._emit(tensor.SplatOp(zero, (), type)))
        for value in (*op.slices, *op.inputs):
            # Constants are made where they are first asked for.
            self._value(value)
        if op.is_counted:
            self._for(op, carried)
        else:
            self._while(op, carried)

    def _for(self, op: graph.LoopOp, carried: Sequence[SSAValue]) -> None:
        assert op.most is not None
        start, end, step = (self._index(each) for each in (0, op.most, 1))
        block = Block(arg_types=[IndexType(), *(value.type for value in carried)])
        number, *before = block.args
        with self._inside(block):
            line: SSAValue = number
            if op.reverse is not None:
                line = self._emit(arith.SubiOp(self._index(op.most - 1), number))
            self._emit_last(scf.YieldOp(*self._iteration(op, line, before)))
        self._results(op.outputs, scf.ForOp(start, end, step, carried, Region(block)))

    def _while(self, op: graph.LoopOp, carried: Sequence[SSAValue]) -> None:
        """Whether a run asks for more iterations than there may be is seen where the loop has ended."""
        count = None if op.count is None else self._emit(arith.IndexCastOp(self._number(op.count), IndexType()))
        most = None if op.most is None else self._index(op.most)
        goes_on = [] if op.condition is None else [self._number(op.condition)]
        given = [self._index(0), *goes_on, *carried]
        types = [value.type for value in given]
        head, body = Block(arg_types=types), Block(arg_types=types)
        own = 1 + len(goes_on)

        def wants(state: Sequence[SSAValue], limits: Sequence[SSAValue | None]) -> SSAValue:
            """Whether none of what ends the loop does."""
            below = [self._emit(arith.CmpiOp(state[0], limit, "slt")) for limit in limits if limit is not None]
            first, *others = [*below, *state[1:own]]
            for other in others:
                first = self._emit(arith.AndIOp(first, other))
            return first

        with self._inside(head):
            self._emit_last(scf.ConditionOp(wants(head.args, (count, most)), *head.args))
        with self._inside(body):
            number, before = body.args[0], body.args[own:]
            following = self._emit(arith.AddiOp(number, self._index(1)))
            after = self._iteration(op, number, before)
            flags = [] if op.goes_on is None else [self._number(op.goes_on)]
            self._emit_last(scf.YieldOp(following, *flags, *after))
        loop = scf.WhileOp(given, types, Region(head), Region(body))
        self._results(op.outputs, loop, own)
        if most is not None:
            true = self._emit(arith.ConstantOp.from_int_and_width(1, i1))
            enough = self._emit(arith.XOrIOp(wants(loop.results, (count,)), true))
            self._emit_last(cf.AssertOp(enough, TOO_MANY_TRIPS.format(op.most)))

    def _iteration(self, op: graph.LoopOp, number: SSAValue, before: Sequence[SSAValue]) -> list[SSAValue]:
        """What is carried on after an iteration, whose number is that of the lines."""
        index, *arguments = op.body.block.args
        if index.uses:
            element = self._emit(arith.IndexCastOp(number, i64))
            self._values[index] = self._emit(tensor.FromElementsOp.build(
                operands=[[element]], result_types=[_below_graph(index)]
            ))  # fmt: skip
        carries = len(op.inits)
        lines = [self._line(self._value(value), number) for value in op.slices]
        read = [*before[:carries], *lines, *(self._value(value) for value in op.inputs)]
        self._values.update(zip(arguments, read, strict=True))
        values = self._yielded(op.body.block)
        made = [self._value(value) for value in op.lines]
        stacked = [self._stack(line, into, number) for line, into in zip(made, before[carries:], strict=True)]
        return [*values[len(values) - len(made) - carries : len(values) - len(made)], *stacked]

    def _line(self, of: SSAValue, number: SSAValue) -> SSAValue:
        """One line of a tensor, without its first dimension."""
        shape = shape_of(of)
        offsets = [number, *(0 for _ in shape[1:])]
        ones = [1] * len(shape)
        type = tensor_type(shape[1:], element_of(of))
        return self._emit(tensor.ExtractSliceOp(of, offsets, [1, *shape[1:]], ones, type))

    def _stack(self, line: SSAValue, into: SSAValue, number: SSAValue) -> SSAValue:
        shape = shape_of(into)
        sizes, offsets, ones = [1, *shape[1:]], [DYNAMIC_INDEX, *(0 for _ in shape[1:])], [1] * len(shape)
        return self._emit(tensor.InsertSliceOp.get(line, into, sizes, offsets, ones, [number]))

    def _index(self, number: int) -> SSAValue:
        return self._emit(arith.ConstantOp.from_int_and_width(number, IndexType()))

    def _number(self, of: SSAValue) -> SSAValue:
        """The number of a value that holds one."""
        held = self._value(of)
        zeros = [self._index(0) for _ in shape_of(held)]
        return self._emit(tensor.ExtractOp(held, zeros, element_of(held)))

    def _keep(self, op: Operation) -> None:
        """Copy an op of another dialect."""
        for inner in op.walk():
            if is_graph_op(inner):
                raise UserError(
                    f"{inner.name} stands inside {op.name}: only the body of a function is lowered",
                    loc=location_of(inner),
                )
            for operand in inner.operands:
                if isinstance(operand.owner, graph.ConstantOp):
                    self._value(operand)
        self._block.add_op(op.clone(self._values))

    def _view(self, parameter: KernelParameter) -> SSAValue:
        value, split = self._value(parameter.source), parameter.split
        if split is None:
            return value
        if parameter not in self._views:
            shape = split.shape(shape_of(value))
            self._views[parameter] = emit_reshape(self._emit, value, shape)
        return self._views[parameter]

    def _value(self, of: SSAValue) -> SSAValue:
        """The tensor of a graph value; constants are made when they are first asked for."""
        if (found := self._values.get(of)) is not None:
            return found
        constant = of.owner
        assert isinstance(constant, graph.ConstantOp)
        name = constant.weight
        value = self._dense(constant) if name is None else self._weight(name, constant)
        self._values[of] = value
        return value

    def _weight(self, name: str, constant: graph.ConstantOp) -> SSAValue:
        if name not in self._weights:
            self._weights[name] = self._argument(constant.result)
            hint = _NOT_IN_NAMES.sub("_", name)
            self._weights[name].name_hint = hint if SSAValue.is_valid_name(hint) else "weight"
        found = self._weights[name]
        if shape_of(found) != shape_of(constant.result):
            raise UserError(
                f'the weight "{name}" is used as a {found.type} and as a {constant.result.type}',
                loc=location_of(constant),
            )
        return found

    def _dense(self, constant: graph.ConstantOp) -> SSAValue:
        dense = constant.dense
        type = tensor_type(shape_of(constant.result), signless(element_of(constant.result)))
        made = arith.ConstantOp(DenseIntOrFPElementsAttr(type, dense.data))  # pyright: ignore[reportArgumentType]
        made.location = constant.location
        self._block.add_op(made)
        return made.result

    def _argument(self, of: SSAValue) -> SSAValue:
        type = _below_graph(of) if isa(of.type, TensorType) else of.type
        argument = self._entry.insert_arg(type, len(self._entry.args), location_of_value(of))
        argument.name_hint = of.name_hint
        return argument

    def _emit(self, op: Operation) -> SSAValue:
        self._emit_last(op)
        return op.results[0]

    def _emit_last(self, op: Operation) -> None:
        op.location = self._location
        self._block.add_op(op)


def _below_graph(of: SSAValue) -> TensorType[Attribute]:
    """The type of a tensor of the graph level below that."""
    return tensor_type(shape_of(of), signless(element_of(of)))


def _zero(element: Attribute) -> FloatAttr[AnyFloat] | IntegerAttr[IntegerType]:
    return FloatAttr(0.0, element) if isinstance(element, AnyFloat) else IntegerAttr(0, cast(IntegerType, element))
