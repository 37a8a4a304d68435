# SPDX-License-Identifier: Apache-2.0
"""The walk over the operations of a graph, which writes nodes, initializers and the types of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from xdsl.dialects.builtin import DYNAMIC_INDEX, LocationAttr, NameLoc, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_types import element_type
from penstock.dialects.functions import NAME, attribute_text, body_block, input_name, unique_name
from penstock.dialects.graph import (
    ConstantOp,
    FusedOp,
    GraphOp,
    IfOp,
    LoopOp,
    Tensor,
    WeightAttr,
    YieldOp,
    dense_of,
    tensor_of,
)
from penstock.dialects.graph.base import python_value, tensor_type
from penstock.dialects.graph.dims import dims_of
from penstock.dialects.graph.sizes import is_known
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_onnx.node import Unsupported
from penstock.lowering.from_onnx.schema import check_node, refuse_faulty
from penstock.lowering.from_onnx.table import matched
from penstock.lowering.to_onnx.forms import FORMS
from penstock.lowering.to_onnx.nodes import NODES, Cast, Given, Node, Sizes, data_type
from penstock.passes.graph.terms import Term, TermBuilder
from penstock.runtime.interpreter.graph import evaluate_op

OPSET = 20
"""The operator set of a model whose operators are all in it: it has Gelu, and tools that are some years old take it."""

SHAPES = tensor_type(element_type(np.dtype(np.int64)), [1])


class GraphExporter(TermBuilder):
    """
    Writes one function, of which it works on a copy.

    As a builder of terms it writes the node of each op that a form of `FORMS` makes, in the place of the op that is
    being written.
    """

    def __init__(self, function: FuncOp, store: WeightStore):
        super().__init__()
        self._function = function.clone()
        self._store = store
        self._opset = OPSET
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._names: dict[SSAValue, str] = {}
        self._types: dict[str, Tensor] = {}
        self._wanted: dict[SSAValue, str] = {}
        self._taken, self._node_names = set[str](), set[str]()
        self._arrays: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._sizes: dict[str, str] = {}
        self._sized: dict[str, tuple[str, int]] = {}
        self._at = ""

    def model(self) -> ModelProto:
        """The model; see `export_model`."""
        function = self._function
        block = body_block(function, "exported")
        if (below := next((each for each in block.arg_types if not isinstance(each, TensorType)), None)) is not None:
            message = f"@{function.sym_name.data} takes a {below}, and ONNX holds what is at graph level"
            raise UserError(message, loc=location_of(function), status=UNSUPPORTED)
        dims = dims_of(function)
        for argument, symbols in zip(block.args, dims, strict=True):
            name = unique_name(input_name(function, argument.index), self._taken)
            self._bind(argument, name)
            for dim, symbol in enumerate(symbols):
                if symbol:
                    self._sized.setdefault(symbol, (name, dim))
        returned = block.last_op
        assert isinstance(returned, ReturnOp)
        # Outputs have their names whatever computes them.
        labels = [
            attribute_text(function, index, NAME, results=True) or f"output_{index}"
            for index in range(len(returned.operands))
        ]
        labels = [unique_name(label, self._taken) for label in labels]
        for value, label in zip(returned.operands, labels, strict=True):
            if isinstance(value.owner, Operation):
                self._wanted.setdefault(value, label)
        self._block(block)
        for value, label in zip(returned.operands, labels, strict=True):
            self._copied(value, label)
        inputs = [
            _value_info(self._names[arg], arg.type, symbols) for arg, symbols in zip(block.args, dims, strict=True)
        ]
        of_results = dims_of(function, results=True)
        outputs = [
            _value_info(label, value.type, symbols)
            for label, value, symbols in zip(labels, returned.operands, of_results, strict=True)
        ]
        name = _named(function.location) or "main"
        graph = helper.make_graph(self._nodes, name, inputs, outputs, [*self._initializers.values()])
        return helper.make_model(
            graph,
            producer_name="penstock",
            opset_imports=[opset := helper.make_opsetid("", self._opset)],
            ir_version=helper.find_min_ir_version_for([opset]),
        )

    # The walk.

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if not isinstance(op, ReturnOp | YieldOp):
                self._op(op)

    def _op(self, op: Operation) -> None:
        self._at = _named(op.location)
        try:
            if isinstance(op, FusedOp):
                self._fused(op)
            elif isinstance(op, IfOp):
                self._if(op)
            elif isinstance(op, LoopOp):
                self._loop(op)
            elif isinstance(op, GraphOp):
                self._graph_op(op)
            else:
                raise Unsupported("")
        except (Unsupported, VerifyException) as reason:
            words = f": {reason}" if str(reason) else ""
            raise UserError(f"{op.name} has no form in ONNX{words}", loc=location_of(op), status=UNSUPPORTED) from None

    def _fused(self, op: FusedOp) -> None:
        """What stands in the group, as if it stood there without it."""
        for argument, value in zip(op.body.block.args, op.inputs, strict=True):
            self._names[argument] = self._names[value]
        for result, inner in zip(op.outputs, op.terminator.values, strict=True):
            if result in self._wanted and isinstance(inner.owner, Operation):
                self._wanted.setdefault(inner, self._wanted[result])
        self._block(op.body.block)
        for result, inner in zip(op.outputs, op.terminator.values, strict=True):
            self._names[result] = self._names[inner]

    def _if(self, op: IfOp) -> None:
        """Branches read the values around them by their names."""
        branches: dict[str, GraphProto] = {}
        for name, region in (("then_branch", op.then_body), ("else_branch", op.else_body)):
            branches[name] = self._inner(name, region.block, [], op.inputs)
        self._at = _named(op.location)
        self._control("If", op, [self._names[op.condition]], branches)

    def _loop(self, op: LoopOp) -> None:
        """A Scan, which numbers are scanned for as well; or a Loop, where a run decides how often."""
        block, carries, scanned = op.body.block, len(op.inits), 1 + len(op.slices)
        number, carried, slices = (
            block.args[0],
            block.args[1 : 1 + carries],
            block.args[1 + carries : scanned + carries],
        )
        inits, given = [self._names[value] for value in op.inits], [self._names[value] for value in op.slices]
        at = _named(op.location)
        if op.is_counted:
            if not op.most:
                raise Unsupported("a loop of no iterations")
            body = self._inner("body", block, [*carried, number, *slices], op.inputs)
            sides = [int(op.reverse is not None)] * (scanned + len(op.lines))
            attributes = {"body": body, "num_scan_inputs": scanned, "scan_input_directions": sides[:scanned]}
            attributes |= {"scan_output_directions": tuple(sides[scanned:])}
            numbers = self._array(np.arange(op.most, dtype=np.int64), "numbers")
            self._at = at
            self._control("Scan", op, [*inits, numbers, *given], attributes)
            return
        if op.most is not None:
            raise Unsupported("a bound of its iterations")
        goes_on = unique_name("goes_on", self._taken)
        body = self._inner("body", block, [number, *carried], op.inputs)
        body.input.insert(1, helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []))
        if op.condition is None:
            again = unique_name("goes_on", self._taken)
            body.node.append(helper.make_node("Identity", [goes_on], [again]))
            body.output.insert(0, helper.make_tensor_value_info(again, TensorProto.BOOL, []))
        ends = ["" if value is None else self._names[value] for value in (op.count, op.condition)]
        self._at = at
        self._control("Loop", op, [*ends, *inits], {"body": body})

    def _inner(self, name: str, block: Block, arguments: Sequence[SSAValue], read: Sequence[SSAValue]) -> GraphProto:
        """The graph of a region: its inputs, and what it reads of the graph around it, its last arguments."""
        outer, self._nodes = self._nodes, []
        inputs: list[ValueInfoProto] = []
        for argument in arguments:
            self._bind(argument, unique_name(_hint(argument) or "value", self._taken))
            inputs.append(_value_info(self._names[argument], argument.type, ()))
        for argument, value in zip(block.args[len(block.args) - len(read) :], read, strict=True):
            self._names[argument] = self._names[value]
        self._block(block)
        last = block.last_op
        assert isinstance(last, YieldOp)
        outputs: list[ValueInfoProto] = []
        for value in last.values:
            label = unique_name(self._names[value], self._taken)
            self._copied(value, label)
            outputs.append(_value_info(label, value.type, ()))
        made, self._nodes = helper.make_graph(self._nodes, name, inputs, outputs), outer
        return made

    def _control(self, operator: str, op: IfOp | LoopOp, inputs: Sequence[str], attributes: Mapping[str, Any]) -> None:
        labels = [self._label(value) for value in op.outputs]
        for value, label in zip(op.outputs, labels, strict=True):
            self._bind(value, label)
        self._append(operator, inputs, labels, attributes)

    def _graph_op(self, op: GraphOp) -> None:
        if isinstance(op, ConstantOp):
            self._constant(op)
        elif (form := FORMS.get(type(op))) is not None and (found := form(op, self)) is not None:
            self._names[op.result] = self._names[found.value]
        else:
            rule = NODES.get(type(op))
            node = (rule(op) if rule else None) or self._called(op)
            inputs = [self._input(given) for given in node.inputs]
            label = self._label(op.result)
            outputs = [*(unique_name(f"{label}_unused", self._taken) for _ in range(node.output)), label]
            self._append(node.operator, inputs, outputs, node.attributes, op.result_type)
            self._bind(op.result, label)

    def _constant(self, op: ConstantOp) -> None:
        if op.weight is None:
            (array,) = evaluate_op(op, [], self._store)
            self._names[op.result] = self._array(array, _hint(op.result) or "constant")
            return
        if (name := f"weight {op.weight}") not in self._sizes:
            self._sizes[name] = self._initializer(self._store[op.weight], op.weight)
        self._names[op.result] = self._sizes[name]

    def _called(self, op: GraphOp) -> Node:
        """The node of the operator that an op is called after."""
        operator = _operators().get(op.name.removeprefix("graph.").replace("_", ""))
        if operator is None:
            raise Unsupported("")
        attributes = matched(type(op), onnx.defs.get_schema(operator).attributes)
        for name, declared in op.get_irdl_definition().properties.items():
            if name not in attributes.values() and op.properties.get(name) != declared.default_value:
                raise Unsupported(f"{operator} has no attribute for {name} {op.properties[name]}")
        values = {attribute: python_value(op.properties.get(name)) for attribute, name in attributes.items()}
        held: list[Any] = [getattr(op, name) for name, _ in op.get_irdl_definition().operands]
        inputs: list[Given] = []
        for each in held:
            inputs += each if isinstance(each, tuple) else [each]
        return Node(operator, inputs, values)

    # As a builder of terms.

    def emit(self, op: GraphOp) -> Term:
        if op.is_identity():
            return self.term(op.operands[0])
        self._graph_op(op)
        return self.term(op.result)

    def array(self, array: Array, name: str) -> Term:
        op = ConstantOp(value) if (value := dense_of(array)) is not None else None
        if op is None:
            op = ConstantOp(WeightAttr(name), tensor_type(element_type(array.dtype), array.shape))
        self._names[op.result] = self._array(array, name)
        return self.term(op.result)

    # Parts.

    def _append(
        self,
        operator: str,
        inputs: Iterable[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
        result: Tensor | None = None,
    ) -> None:
        """
        Write a node, whose last output has the type `result`, for the first operator set that allows it.

        Raises VerifyException or Unsupported where none does.
        """
        plain = {name: _plain(value) for name, value in attributes.items() if value is not None and value != ()}
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        name = unique_name(self._at or outputs[-1], self._node_names)
        proto = helper.make_node(operator, given, outputs, name, **plain)
        types = [self._types.get(each) for each in given]
        refusals: list[Exception] = []
        for opset in range(self._opset, onnx.defs.onnx_opset_version() + 1):
            try:
                _check(proto, opset, types, result)
            except (VerifyException, Unsupported) as error:
                refusals.append(error)
            else:
                self._opset = opset
                break
        else:
            raise refusals[-1]
        self._nodes.append(proto)

    def _input(self, given: Given) -> str:
        match given:
            case None:
                return ""
            case SSAValue():
                return self._names[given]
            case Cast(value, element):
                return self._names[self.term(value).cast(element).value]
            case Sizes(sizes):
                return self._shape(sizes)
            case _:
                return self._array(given, "numbers")

    def _shape(self, sizes: Sequence[int | str]) -> str:
        """A shape: numbers as they are, and named sizes as those of the input that has them."""
        if not any(isinstance(size, str) for size in sizes):
            return self._array(np.array(sizes, np.int64), "shape")
        parts = [
            self._size(size) if isinstance(size, str) else self._array(np.array([size], np.int64), "size")
            for size in sizes
        ]
        return self._helper("Concat", parts, len(parts), {"axis": 0})

    def _size(self, symbol: str) -> str:
        if symbol not in self._sized:
            raise Unsupported(f'no input has the size "{symbol}"')
        name, dim = self._sized[symbol]
        return self._helper("Shape", [name], 1, {"start": dim, "end": dim + 1})

    def _helper(self, operator: str, inputs: Sequence[str], count: int, attributes: Any) -> str:
        label = unique_name("shape", self._taken)
        self._types[label] = tensor_type(SHAPES.element_type, [count])
        self._append(operator, inputs, [label], attributes)
        return label

    def _array(self, array: Array, name: str) -> str:
        """An initializer that holds an array; one that is there serves again."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._arrays:
            self._arrays[key] = self._initializer(array, name)
        return self._arrays[key]

    def _initializer(self, array: Array, name: str) -> str:
        label = unique_name(name, self._taken)
        self._initializers[label] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), label)
        self._types[label] = tensor_type(element_type(array.dtype), array.shape)
        return label

    def _bind(self, value: SSAValue, label: str) -> None:
        self._names[value] = label
        self._types[label] = tensor_of(value)

    def _label(self, value: SSAValue) -> str:
        """What a value is called."""
        if (wanted := self._wanted.get(value)) is not None and wanted not in self._types:
            return wanted
        return unique_name(_hint(value) or self._at or "value", self._taken)

    def _copied(self, value: SSAValue, label: str) -> None:
        """Make `label` an output of the nodes: it is what computes the value, or a copy."""
        if self._names[value] != label:
            self._append("Identity", [self._names[value]], [label], {})
            self._types[label] = tensor_of(value)


@cache
def _operators() -> dict[str, str]:
    """The operators of ONNX by their names in small letters."""
    return {schema.name.lower(): schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}


def _check(proto: NodeProto, opset: int, types: Sequence[Tensor | None], result: Tensor | None) -> None:
    """Raise VerifyException if ONNX does not allow a node, or says that its last output is something else."""
    check_node(proto, opset)
    if proto.op_type in ("If", "Loop", "Scan"):
        return
    inferred = refuse_faulty(proto, opset, types).get(proto.output[-1])
    if result is None or inferred is None:
        return
    found, wanted = inferred.tensor_type, result.get_shape()
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in found.shape.dim]
    fits = len(sizes) == len(wanted) and all(
        size is None or not is_known(want) or size == want for size, want in zip(sizes, wanted, strict=True)
    )
    if found.elem_type != data_type(result.element_type) or (found.HasField("shape") and not fits):
        raise VerifyException(f"{proto.op_type} gives another type than {result}")


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return list(cast(tuple[int, ...], value)) if isinstance(value, tuple) else value


def _hint(value: SSAValue) -> str:
    return value.name_hint or ""


def _named(location: LocationAttr) -> str:
    """The name that a location gives, "" without one."""
    return location.desc.data if isinstance(location, NameLoc) else ""


def _value_info(name: str, type: Attribute, symbols: Sequence[str]) -> ValueInfoProto:
    tensor = cast(Tensor, type)
    sizes = tensor.get_shape()
    names = list(symbols) or [""] * len(sizes)
    shape = [(name or None) if size == DYNAMIC_INDEX else size for size, name in zip(sizes, names, strict=True)]
    return helper.make_tensor_value_info(name, data_type(tensor.element_type), shape)
