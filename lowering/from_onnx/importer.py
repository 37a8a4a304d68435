"""The walk over the nodes of an ONNX graph, which builds the function and the weight store."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.defs import onnx_opset_version
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.element_types import element_type
from penstock.dialects.functions import NAME
from penstock.dialects.graph import ConstantOp, GraphOp, IfOp, Tensor, WeightAttr, YieldOp, dense_of, tensor_of
from penstock.dialects.graph.base import erased, set_type
from penstock.dialects.graph.dims import DIMS, names_attr, symbols_of
from penstock.dialects.graph.kernel import KernelOp
from penstock.dialects.graph.sizes import UnknownSize, is_known
from penstock.dialects.locations import location_of_value, named
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_kernel.calls import CalledKernels
from penstock.lowering.from_onnx.constants import FROM_CONSTANTS, evaluate, is_foldable
from penstock.lowering.from_onnx.findings import Gap, ImportFindings, OpenSize
from penstock.lowering.from_onnx.kernels import DOMAIN, call_kernel
from penstock.lowering.from_onnx.model import Declarations, declarations_of, misfit, mismatch
from penstock.lowering.from_onnx.node import (
    DOMAINS,
    Held,
    OnnxNode,
    Unsupported,
    called,
    node_name,
    one_of,
    operator_of,
    to_array,
)
from penstock.lowering.from_onnx.schema import STUMBLES, check_node, function_of, has_function, refuse_faulty
from penstock.lowering.from_onnx.size_arithmetic import evaluate_sizes, has_unknown, refuse_unknown, reshaped
from penstock.lowering.from_onnx.structure import check_structure, names_read, nodes_of
from penstock.lowering.from_onnx.table import importer_of
from penstock.lowering.from_onnx.tensor_data import refuse_nan

INLINE_LIMIT = 16
"""Constants with more elements go to the weight store, smaller ones stay in the text where they can."""


def isolate(blocks: Sequence[Block]) -> list[SSAValue]:
    """The values from outside that the ops of `blocks` use, each of which becomes an argument of every block."""
    outside: dict[SSAValue, None] = {}
    for block in blocks:
        for op in block.ops:
            outside.update(
                dict.fromkeys(
                    value
                    for value in op.operands
                    if value.owner is not block
                    and not (isinstance(value.owner, Operation) and value.owner.parent is block)
                )
            )
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


class _Unknown:
    """Stands for the outputs of a node that could not be imported."""


_UNKNOWN = _Unknown()

Names = MutableMapping[str, "Held | TensorProto | _Unknown"]
"""What each name of a graph means; tensors are read when they are first used."""


@dataclass
class GraphImporter:
    """
    Imports the graph of one model into the function `@main`.

    `place` is the file, for messages. Nodes that are not supported, and those that need to know a size, are
    collected, and reported together at the end.
    """

    opsets: Mapping[str, int]
    place: str
    kernels: CalledKernels
    allow_nan: bool = False
    """Whether weights may hold what is no number."""
    store: WeightStore = field(default_factory=WeightStore)
    block: Block = field(default_factory=Block)
    pinned: list[Array] = field(default_factory=list[Array])
    constants: dict[tuple[str, int], SSAValue] = field(default_factory=dict[tuple[str, int], SSAValue])

    def __post_init__(self) -> None:
        self._found = ImportFindings(self.place)

    # What nodes build.

    def emit(self, op: GraphOp, name: str) -> SSAValue:
        """Append `op` with the location of the node called `name`, unless its result is its operand."""
        if op.is_identity():
            found = op.operands[0]
            op.erase()
            return found
        if all(is_known(size) for value in (*op.operands, op.result) for size in tensor_of(value).get_shape()):
            # Here the node at fault is known. Types with names of sizes verify only without them.
            op.verify_()
        self._append(op, name)
        return op.result

    def emit_kernel(self, op: KernelOp, name: str) -> None:
        """Append the call of a kernel, with the location of the node called `name`."""
        self._append(op, name)

    def _append(self, op: Operation, name: str) -> None:
        op.location = named(name)
        self.block.add_op(op)

    def constant(self, array: Array, name: str) -> SSAValue:
        """The value of a constant: in the text if it is small and not of different floats, else a weight."""
        key = (name, id(array))
        if (known := self.constants.get(key)) is not None:
            return known
        refuse_unknown(array, "is used as a number to compute with")
        try:
            element = element_type(array.dtype)
        except ValueError as error:
            raise Unsupported(str(error)) from None
        value = dense_of(array) if array.size <= INLINE_LIMIT else None
        if value is not None:
            op = ConstantOp(value)
        else:
            weight = WeightAttr(self.store.add(name, array))
            op = ConstantOp(weight, TensorType(element, array.shape))
        result = self.emit(op, name)
        _hint(result, name)
        self.constants[key] = result
        # An array that is kept alive keeps its id to itself.
        self.pinned.append(array)
        return result

    # The walk.

    def run(self, model: ModelProto, inputs: Mapping[str, Tensor]) -> FuncOp:
        """The function of the model's graph; raises UserError for all that is wrong or not supported."""
        graph = model.graph
        if graph.sparse_initializer:
            self._found.gaps.append(Gap("sparse_initializer", graph.name, ""))
        names: Names = {}
        for name, tensor in inputs.items():
            argument = self.block.insert_arg(tensor, len(self.block.args), named(name))
            _hint(argument, name)
            names[name] = argument
        check_structure(graph, self.place)
        try:
            self._run_graph(graph, names)
        finally:
            self._found.warn()
        results = [self._output(names, value.name) for value in graph.output]
        self._found.refuse(self._symbols())
        outputs = [cast(SSAValue, result) for result in results]
        self.block.add_op(ReturnOp(*outputs))
        types = ([argument.type for argument in self.block.args], [out.type for out in outputs])
        function = FuncOp(
            "main",
            types,
            Region(self.block),
            arg_attrs=_attributes(list(inputs), types[0]),
            res_attrs=_attributes([value.name for value in graph.output], types[1]),
        )
        function.location = named(graph.name or "main")
        self._erase_names()
        function.update_function_type()
        return function

    def _erase_names(self) -> None:
        """While the graph is built, types hold the names of unknown sizes; in the IR they are `?`."""
        blocks = [self.block, *(block for op in self.block.walk() for each in op.regions for block in each.blocks)]
        for block in blocks:
            for value in (*block.args, *(result for op in block.ops for result in op.results)):
                set_type(value, erased(tensor_of(value)))

    def _run_graph(self, graph: GraphProto, names: Names) -> None:
        inputs = {value.name: value for value in graph.input}
        for tensor in graph.initializer:
            names[tensor.name] = tensor
            self._check_initializer(tensor, inputs)
        outputs = [value.name for value in graph.output]
        self._run_nodes(nodes_of(graph, self.place), outputs, names, self.opsets[""], declarations_of(graph))

    def _run_nodes(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], names: Names, opset: int, declared: Declarations
    ) -> None:
        used = {name for node in nodes for name in names_read(node)} | set(outputs)
        for proto in nodes:
            try:
                self._check_operands(proto, names)
                results = self._run_node(proto, names, opset, used)
                for name, held in zip(proto.output, results or (), strict=False):
                    if held is not None and (fault := misfit(name, held, declared)):
                        self._found.misfits.append(f"{called(proto)}: {fault}")
            except Unsupported as reason:
                self._found.gaps.append(Gap(operator_of(proto), node_name(proto), str(reason)))
                results = None
            except UnknownSize as error:
                self._found.open.append(OpenSize(called(proto), error))
                results = None
            except VerifyException as error:
                raise self._fault(proto, str(error), getattr(error, "__notes__", ())) from None
            for index, name in enumerate(proto.output):
                if not name:
                    continue
                found = _UNKNOWN if results is None else _nth(results, index)
                if found is not None:
                    names[name] = found
                if isinstance(found, SSAValue):
                    _hint(found, name)

    def _run_node(self, proto: NodeProto, names: Names, opset: int, used: set[str]) -> Sequence[Held | None] | None:
        """The outputs of a node, None if they cannot be known because its inputs are not."""
        inputs = [self._lookup(name, names) if name else None for name in proto.input]
        operator = operator_of(proto)
        importer = self._call if proto.domain == DOMAIN else importer_of(operator)
        if importer is None or proto.domain in DOMAINS:
            check_node(proto, opset)
        if operator == "If":
            return self._run_if(proto, inputs[0] if inputs else None, names)
        held = [each for each in inputs if not isinstance(each, _Unknown)]
        if len(held) < len(inputs):
            if importer is None and operator not in FROM_CONSTANTS and not has_function(proto, opset):
                raise Unsupported("")
            return None
        arrays = [each for each in held if not isinstance(each, SSAValue)]
        node = OnnxNode(proto, opset, held, [name in used and name != "" for name in proto.output], self)
        if (unknown := [each for each in arrays if each is not None and has_unknown(each)]) and (
            importer is None or len(arrays) == len(held)
        ):
            if (sizes := evaluate_sizes(node)) is not None:
                return sizes
            if importer is None:
                refuse_unknown(unknown[0], "is an operand")
        elif len(arrays) == len(held) and is_foldable(proto, arrays, importer is not None):
            if (results := reshaped(node) or evaluate(proto, opset, arrays)) is not None:
                return results
        if operator in FROM_CONSTANTS:
            raise Unsupported("all its inputs must be constant")
        if importer is None:
            return self._run_body(proto, opset, held)
        try:
            outputs = importer(node)
        except STUMBLES:
            # Importers check what they use; what else is wrong with a node, ONNX knows.
            refuse_faulty(proto, opset, [None if each is None else self._type_of(each) for each in held])
            raise
        return outputs if isinstance(outputs, Sequence) else [outputs]

    def _call(self, node: OnnxNode) -> Sequence[Held | None]:
        return call_kernel(self.kernels, node)

    def apply(self, proto: NodeProto, inputs: Sequence[SSAValue]) -> SSAValue:
        """The first output of a node of the newest operator set, which is right, on values."""
        names: Names = dict(zip(proto.input, inputs, strict=True))
        results = self._run_node(proto, names, onnx_opset_version(), set(proto.output))
        assert results is not None
        assert isinstance(results[0], SSAValue)
        return results[0]

    def _run_body(self, proto: NodeProto, opset: int, inputs: Sequence[Held | None]) -> Sequence[Held | None] | None:
        """
        The outputs of an operator that ONNX defines by a function on other operators, None if a node of it needs to
        know a size. What is refused in the function is refused of its node.
        """
        types = [self._type_of(each) for each in inputs]
        body = function_of(proto, opset, types)
        names: Names = {name: held for name, held in zip(body.input, inputs, strict=False) if held is not None}
        version = next((entry.version for entry in body.opset_import if entry.domain in DOMAINS), opset)
        before, open_before = len(self._found.gaps), len(self._found.open)
        try:
            self._run_nodes(body.node, body.output, names, version, {})
        except UserError as error:
            refuse_faulty(proto, opset, types)
            # Without the name of a node that the model does not have.
            raise VerifyException(error.message.partition(": ")[2]) from None
        if len(self._found.gaps) > before:
            inner = ", ".join(dict.fromkeys(str(gap) for gap in self._found.gaps[before:]))
            del self._found.gaps[before:]
            raise Unsupported(f"it is computed by {inner}")
        if len(self._found.open) > open_before:
            return None
        results = [self._held(names[name]) if name in names else None for name in body.output]
        for result in results:
            if isinstance(result, SSAValue) and not any(result is each for each in inputs):
                result.name_hint = None
        return results

    def _run_if(
        self, proto: NodeProto, condition: Held | _Unknown | None, names: Names
    ) -> Sequence[Held | None] | None:
        """The outputs of the branch that a constant condition takes, or of both behind one that a run computes."""
        if isinstance(condition, _Unknown):
            return None
        if isinstance(condition, SSAValue):
            return self._run_branches(proto, condition, names)
        if condition is None:
            raise VerifyException("it has no condition")
        taken = "then_branch" if one_of(condition, "condition") else "else_branch"
        results = self._run_branch(proto, taken, names)
        return None if None in results else cast(list[Held], results)

    def _run_branch(self, proto: NodeProto, name: str, names: Names) -> list[SSAValue | None]:
        branch = next((each.g for each in proto.attribute if each.name == name), None)
        if branch is None:
            raise VerifyException(f"it has no {name}")
        inner: Names = dict(names)
        self._run_graph(branch, inner)
        return [self._output(inner, value.name) for value in branch.output]

    def _run_branches(self, proto: NodeProto, condition: SSAValue, names: Names) -> Sequence[Held | None] | None:
        """The results of both branches, of which a condition chooses that is known when the program runs."""
        outer, constants = self.block, self.constants
        blocks, yielded = (Block(), Block()), list[list[SSAValue | None]]()
        try:
            for self.block, name in zip(blocks, ("then_branch", "else_branch"), strict=True):
                # A branch sees no constant that another block makes.
                self.constants = {}
                yielded.append(self._run_branch(proto, name, names))
        finally:
            self.block, self.constants = outer, constants
        then, otherwise = yielded
        if None in then or None in otherwise:
            return None
        found = cast(list[list[SSAValue]], yielded)
        types = [[tensor_of(value) for value in values] for values in found]
        if types[0] != types[1]:
            left, right = (" and ".join(map(str, each)) for each in types)
            raise Unsupported(f"its then_branch gives {left}, its else_branch {right}")
        for block, values in zip(blocks, found, strict=True):
            block.add_op(YieldOp(*values))
        inputs = isolate(blocks)
        op = IfOp(condition, inputs, *blocks, types[0])
        self._append(op, node_name(proto))
        return list(op.outputs)

    # Names.

    def _check_operands(self, proto: NodeProto, names: Names) -> None:
        for name in proto.input:
            if name and name not in names:
                near = did_you_mean(name, names)
                message = f'it reads "{name}", which no input, initializer or earlier node defines'
                raise self._fault(proto, message, [near] if near else [])

    def _check_initializer(self, tensor: TensorProto, inputs: Mapping[str, ValueInfoProto]) -> None:
        """An initializer that is also an input has the type of both."""
        if (value := inputs.get(tensor.name)) is not None and (fault := mismatch(tensor, value)):
            raise UserError(f'initializer "{tensor.name}" {fault}', loc=self.place)

    def _held(self, found: Held | TensorProto | _Unknown) -> Held:
        assert not isinstance(found, _Unknown)
        return self._read(found) if isinstance(found, TensorProto) else found

    def _lookup(self, name: str, names: Names) -> Held | _Unknown:
        found = names[name]
        if isinstance(found, TensorProto):
            found = names[name] = self._read(found)
        return found

    def _read(self, tensor: TensorProto) -> Array:
        try:
            array = to_array(tensor)
        except Unsupported:
            raise
        except Exception as error:
            # A size that does not match, or a type onnx does not read.
            raise UserError(f'initializer "{tensor.name}" cannot be read: {error}', loc=self.place) from None
        if not self.allow_nan:
            refuse_nan(array, tensor.name, self.place)
        return array

    def _output(self, names: Names, name: str) -> SSAValue | None:
        """The value of an output, None if a gap keeps it from being known."""
        found = names.get(name)
        if found is None:
            raise UserError(f'nothing defines the output "{name}"', loc=self.place)
        if isinstance(found, _Unknown):
            return None
        if isinstance(found, TensorProto):
            found = self._read(found)
        try:
            return found if isinstance(found, SSAValue) else self.constant(found, name)
        except UnknownSize as error:
            self._found.open.append(OpenSize(f'output "{name}"', error))
            return None

    def _type_of(self, held: Held | None) -> Tensor | None:
        if held is None:
            return None
        if isinstance(held, SSAValue):
            return cast(Tensor, held.type)
        return TensorType(element_type(held.dtype), held.shape)

    # Faults.

    def _fault(self, proto: NodeProto, message: str, notes: Sequence[str] = ()) -> UserError:
        return UserError(f"{called(proto)}: {message}", loc=self.place, notes=notes)

    def _symbols(self) -> list[str]:
        """The symbolic dimensions of the inputs."""
        shapes = [tensor_of(argument).get_shape() for argument in self.block.args]
        return list(dict.fromkeys(name for shape in shapes for name in symbols_of(shape) if name))


def _nth(results: Sequence[Held | None], index: int) -> Held | None:
    return results[index] if index < len(results) else None


def _hint(value: SSAValue, name: str) -> None:
    """Name `value` in the text after its ONNX name, as far as the text allows."""
    if value.name_hint is not None:
        return
    words = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    if words and not words[0].isdigit():
        value.name_hint = words


def _attributes(names: Sequence[str], types: Sequence[Attribute]) -> ArrayAttr[DictionaryAttr]:
    """The names of arguments or results, and those of their dimensions of unknown size."""
    entries: list[DictionaryAttr] = []
    for name, type in zip(names, types, strict=True):
        entry: dict[str, Attribute] = {NAME: StringAttr(name)}
        if any(symbols := symbols_of(cast(Tensor, type).get_shape())):
            entry[DIMS] = names_attr(symbols)
        entries.append(DictionaryAttr(entry))
    return ArrayAttr(entries)
