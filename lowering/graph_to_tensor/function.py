"""Lowers the body of one function: groups become kernels and calls of them, the rest views."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FunctionType,
    IndexType,
    LocationAttr,
    StringAttr,
    TensorType,
    i1,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.functions import WEIGHT
from penstock.dialects.locations import location_of_value
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, KernelParameter, lowering_of
from penstock.lowering.graph_to_tensor.shape import emit_concat, emit_slice
from penstock.passes.graph.values import is_view
from penstock.passes.isomorphic_kernels import structure_of
from penstock.passes.shapes import element_of, shape_of, signless, tensor_type
from penstock.passes.tensor.reshape import emit_reshape

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.]")
"""What names of weights may have in them and names of values may not."""


def is_graph_op(op: Operation) -> bool:
    """Whether `op` is one that leaves at this lowering."""
    return (
        isinstance(op, graph.GraphOp | graph.FusedOp | graph.IfOp | graph.KernelOp) or lowering_of(type(op)) is not None
    )


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
                self._call(members, outside, op.terminator.values, op.outputs)
            case graph.IfOp():
                self._if(op)
            case graph.YieldOp():
                self._emit_last(scf.YieldOp(*(self._value(value) for value in op.values)))
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
                self._call([op], outside, op.results, op.results)
            case _:
                self._keep(op)

    def _call(
        self,
        members: Sequence[Operation],
        outside: Mapping[SSAValue, SSAValue],
        yielded: Sequence[SSAValue],
        results: Sequence[SSAValue],
    ) -> None:
        """Build the kernel of a group, and let `results` be what a call of it returns for `yielded`."""
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
        self._block.add_op(call)
        for result, value in zip(results, call.results, strict=True):
            value.name_hint = result.name_hint
            self._values[result] = emit_reshape(self._emit, value, shape_of(result))

    def _if(self, op: graph.IfOp) -> None:
        """Lower the branches to those of an `scf.if`, where what they read of the outside is read as it is."""
        condition = self._value(op.condition)
        zero = [self._emit(arith.ConstantOp.from_int_and_width(0, IndexType())) for _ in shape_of(condition)]
        flag = self._emit(tensor.ExtractOp(condition, zero, i1))
        inputs = [self._value(value) for value in op.inputs]
        outer = self._block
        branches: list[Block] = []
        for region in op.regions:
            self._values.update(zip(region.block.args, inputs, strict=True))
            self._block = Block()
            branches.append(self._block)
            for inner in region.block.ops:
                self._location = inner.location
                self._lower(inner)
        self._block, self._location = outer, op.location
        types = [_below_graph(result) for result in op.outputs]
        choice = scf.IfOp(flag, types, Region(branches[0]), Region(branches[1]))
        self._emit_last(choice)
        for result, value in zip(op.outputs, choice.results, strict=True):
            value.name_hint = result.name_hint
            self._values[result] = value

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


def _below_graph(of: SSAValue) -> Attribute:
    """The type of a tensor of the graph level below that."""
    return tensor_type(shape_of(of), signless(element_of(of)))
