# SPDX-License-Identifier: Apache-2.0
"""The walk over the nodes of an ONNX graph, which builds the function and the weight store."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.defs import onnx_opset_version
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.dialects.element_types import element_type
from penstock.dialects.functions import COUNT, NAME, unique_name
from penstock.dialects.graph import ConstantOp, GraphOp, Tensor, WeightAttr, dense_of, tensor_of
from penstock.dialects.graph.base import erased, set_type
from penstock.dialects.graph.dims import DIMS, names_attr, symbols_of
from penstock.dialects.graph.sizes import UnknownSize, is_known
from penstock.dialects.locations import named
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_kernel.calls import CalledKernels
from penstock.lowering.from_onnx.constants import FROM_CONSTANTS, evaluate, is_foldable
from penstock.lowering.from_onnx.findings import Gap, ImportFindings, OpenSize
from penstock.lowering.from_onnx.forms import FORMS
from penstock.lowering.from_onnx.kernels import DOMAIN, call_kernel
from penstock.lowering.from_onnx.model import Declarations, declarations_of, misfit, mismatch
from penstock.lowering.from_onnx.node import (
    DOMAINS,
    ON_SEQUENCES,
    WITH_GRAPHS,
    Held,
    OnnxNode,
    TensorSequence,
    Unsupported,
    called,
    node_name,
    operator_of,
    to_array,
)
from penstock.lowering.from_onnx.schema import CLASSICAL, STUMBLES, check_node, function_of, has_function, refuse_faulty
from penstock.lowering.from_onnx.size_arithmetic import evaluate_sizes, has_unknown, refuse_unknown, reshaped
from penstock.lowering.from_onnx.structure import check_structure, names_read, nodes_of
from penstock.lowering.from_onnx.table import importer_of
from penstock.lowering.from_onnx.tensor_data import refuse_nan
from penstock.passes.graph.values import erase_dead

INLINE_LIMIT = 16
"""Constants with more elements go to the weight store, smaller ones stay in the text where they can."""


_WITHOUT_FOLDING = ("Optional", "OptionalGetElement", "OptionalHasElement", "SequenceConstruct", "SplitToSequence")
"""Operators on tensors that give, or take, what is none."""

T = TypeVar("T")


class _Unknown:
    """Stands for the outputs of a node that could not be imported."""


_UNKNOWN = _Unknown()

Names = MutableMapping[str, "Held | TensorProto | TensorSequence | _Unknown"]
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
    max_trips: int | None = None
    """The most lines that a loop gives where a run decides how many there are."""
    store: WeightStore = field(default_factory=WeightStore)
    block: Block = field(default_factory=Block)
    pinned: list[Array] = field(default_factory=list[Array])
    counts: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """For each value of which a run decides how many lines there are, their number."""
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
        self.append(op, name)
        return op.result

    def append(self, op: Operation, name: str) -> None:
        """Append `op` with the location of the node called `name`."""
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
            self._run_graph(graph, names, self.opsets[""])
        finally:
            self._found.warn()
        results = [self._output(names, value.name) for value in graph.output]
        self._found.refuse(self._symbols())
        outputs = [cast(SSAValue, result) for result in results]
        labels = [value.name for value in graph.output]
        taken, counted = {*inputs, *labels}, dict[int, str]()
        for number, (value, name) in enumerate(list(zip(outputs, labels, strict=True))):
            if value in self.counts:
                outputs.append(self.counts[value])
                counted[number] = unique_name(f"{name}/count", taken)
                labels.append(counted[number])
        self.block.add_op(ReturnOp(*outputs))
        erase_dead(self.block)
        types = ([argument.type for argument in self.block.args], [out.type for out in outputs])
        function = FuncOp(
            "main",
            types,
            Region(self.block),
            arg_attrs=_attributes(list(inputs), types[0]),
            res_attrs=_attributes(labels, types[1], counted),
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

    def _run_graph(self, graph: GraphProto, names: Names, opset: int) -> None:
        inputs = {value.name: value for value in graph.input}
        for tensor in graph.initializer:
            names[tensor.name] = tensor
            self._check_initializer(tensor, inputs)
        outputs = [value.name for value in graph.output]
        self._run_nodes(nodes_of(graph, self.place), outputs, names, opset, declarations_of(graph))

    def _run_nodes(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], names: Names, opset: int, declared: Declarations
    ) -> None:
        used = {name for node in nodes for name in names_read(node)} | set(outputs)
        for proto in nodes:
            try:
                self._check_operands(proto, names)
                results = self._run_node(proto, names, opset, used)
                for name, held in zip(proto.output, results or (), strict=False):
                    if isinstance(held, TensorSequence) or held is None:
                        continue
                    if fault := misfit(name, held, declared):
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

    def _run_node(
        self, proto: NodeProto, names: Names, opset: int, used: set[str]
    ) -> Sequence[Held | TensorSequence | None] | None:
        """The outputs of a node, None if they cannot be known because its inputs are not."""
        found = [self._lookup(name, names) if name else None for name in proto.input]
        for held, name in zip(found, proto.input, strict=True):
            self._check_lines(held, name)
        operator = operator_of(proto)
        sequences = {index: held for index, held in enumerate(found) if isinstance(held, TensorSequence)}
        if sequences and operator not in ON_SEQUENCES:
            raise Unsupported("it takes a sequence")
        inputs = [None if isinstance(held, TensorSequence) else held for held in found]
        importer = self._call if proto.domain == DOMAIN else importer_of(operator)
        if proto.domain not in DOMAINS:
            opset = self.opsets.get(proto.domain, 1)
        if importer is None or proto.domain in (*DOMAINS, CLASSICAL) or operator in FORMS:
            check_node(proto, opset)
        held = [each for each in inputs if not isinstance(each, _Unknown)]
        if len(held) < len(inputs):
            if importer is None and operator not in FROM_CONSTANTS and not has_function(proto, opset):
                raise Unsupported("")
            return None
        if operator == "Identity" and sequences:
            return list(sequences.values())
        is_used = [name in used and name != "" for name in proto.output]
        node = OnnxNode(proto, opset, held, is_used, self, names, sequences)
        if (
            operator not in (*WITH_GRAPHS, *_WITHOUT_FOLDING)
            and not sequences
            and (results := self._folded(node, importer is not None)) is not None
        ):
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
        return outputs if outputs is None or isinstance(outputs, Sequence) else [outputs]

    def _folded(self, node: OnnxNode, has_importer: bool) -> Sequence[Held | None] | None:
        """The outputs of a node that can be computed here, of constants or of sizes."""
        held = node.inputs
        arrays = [each for each in held if not isinstance(each, SSAValue)]
        if (unknown := [each for each in arrays if each is not None and has_unknown(each)]) and (
            not has_importer or len(arrays) == len(held)
        ):
            if (sizes := evaluate_sizes(node)) is not None:
                return sizes
            if not has_importer:
                refuse_unknown(unknown[0], "is an operand")
        elif len(arrays) == len(held) and is_foldable(node.proto, arrays, has_importer):
            return reshaped(node) or evaluate(node.proto, node.opset, arrays)
        return None

    def _call(self, node: OnnxNode) -> Sequence[Held | None]:
        return call_kernel(self.kernels, node)

    def apply(self, proto: NodeProto, inputs: Sequence[SSAValue]) -> list[SSAValue]:
        """The outputs of a node of the newest operator set, which is right, on values."""
        names: Names = dict(zip(filter(None, proto.input), inputs, strict=True))
        results = self._run_node(proto, names, onnx_opset_version(), set(proto.output))
        assert results is not None
        return [
            each if isinstance(each, SSAValue) else self.constant(each, node_name(proto))
            for each in results
            if each is not None and not isinstance(each, TensorSequence)
        ]

    def _run_body(
        self, proto: NodeProto, opset: int, inputs: Sequence[Held | None]
    ) -> Sequence[Held | TensorSequence | None] | None:
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

    # Graphs inside nodes.

    @contextmanager
    def region(self) -> Generator[Block]:
        """What is emitted inside goes to a block of its own, which sees no constant that another block makes."""
        outer, constants = self.block, self.constants
        block = self.block = Block()
        self.constants = {}
        try:
            yield block
        except BaseException:
            block.erase(safe_erase=False)
            raise
        finally:
            self.block, self.constants = outer, constants

    def attempt(self, build: Callable[[], T | None]) -> T | None:
        """What `build` gives; None, with nothing noted, where something is in the way."""
        lists: list[list[Any]] = [self._found.gaps, self._found.open, self._found.misfits]
        before, last = [len(each) for each in lists], self.block.last_op
        try:
            result = build()
        except (Unsupported, UnknownSize, VerifyException, UserError):
            result = None
        if result is not None and len(self._found.gaps) == before[0] and len(self._found.open) == before[1]:
            return result
        for each, length in zip(lists, before, strict=True):
            del each[length:]
        while self.block.last_op is not last:
            assert self.block.last_op is not None
            self.block.erase_op(self.block.last_op)
        kept = set(self.block.ops)
        self.constants = {key: value for key, value in self.constants.items() if value.owner in kept}
        return None

    def run_inner(
        self, graph: GraphProto, given: Sequence[Held | TensorSequence], names: Names, opset: int
    ) -> list[Held | TensorSequence | None]:
        """What a graph inside a node gives for its inputs, with the `names` around it; None where gaps keep it."""
        inner: Names = dict(names)
        inner.update(zip((value.name for value in graph.input), given, strict=True))
        self._run_graph(graph, inner, opset)
        results: list[Held | TensorSequence | None] = []
        for value in graph.output:
            found = self._defined(inner, value.name)
            self._check_lines(found, value.name)
            results.append(None if isinstance(found, _Unknown) else self._held(found))
        return results

    def _check_lines(self, held: object, name: str) -> None:
        """Refuse to use a value of which a run decides how many lines there are."""
        if isinstance(held, SSAValue) and held in self.counts:
            raise Unsupported(f'a run decides how many lines "{name}" has, so it can only be an output of the model')

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

    def _held(self, found: Held | TensorProto | TensorSequence | _Unknown) -> Held | TensorSequence:
        assert not isinstance(found, _Unknown)
        return self._read(found) if isinstance(found, TensorProto) else found

    def _lookup(self, name: str, names: Names) -> Held | TensorSequence | _Unknown:
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

    def _defined(self, names: Names, name: str) -> Held | TensorProto | TensorSequence | _Unknown:
        if (found := names.get(name)) is None:
            raise UserError(f'nothing defines the output "{name}"', loc=self.place)
        return found

    def _output(self, names: Names, name: str) -> SSAValue | None:
        """The value of an output, None if a gap keeps it from being known."""
        found = self._defined(names, name)
        if isinstance(found, _Unknown):
            return None
        if isinstance(found, TensorSequence):
            operator, node = found.origin
            self._found.gaps.append(Gap(operator, node, f'what it makes, "{name}", is an output of the model'))
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


def _nth(results: Sequence[Held | TensorSequence | None], index: int) -> Held | TensorSequence | None:
    return results[index] if index < len(results) else None


def _hint(value: SSAValue, name: str) -> None:
    """Name `value` in the text after its ONNX name, as far as the text allows."""
    if value.name_hint is not None:
        return
    words = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    if words and not words[0].isdigit():
        value.name_hint = words


def _attributes(
    names: Sequence[str], types: Sequence[Attribute], counted: Mapping[int, str] | None = None
) -> ArrayAttr[DictionaryAttr]:
    """The names of arguments or results, of their dimensions of unknown size, and of what counts their lines."""
    entries: list[DictionaryAttr] = []
    for number, (name, type) in enumerate(zip(names, types, strict=True)):
        entry: dict[str, Attribute] = {NAME: StringAttr(name)}
        if any(symbols := symbols_of(cast(Tensor, type).get_shape())):
            entry[DIMS] = names_attr(symbols)
        if counted and number in counted:
            entry[COUNT] = StringAttr(counted[number])
        entries.append(DictionaryAttr(entry))
    return ArrayAttr(entries)
