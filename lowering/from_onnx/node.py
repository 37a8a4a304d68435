# SPDX-License-Identifier: Apache-2.0
"""One node of an ONNX graph as its importer function sees it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, numpy_helper
from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import OPS, GraphOp, Tensor, tensor_of
from penstock.dialects.graph.base import tensor_type
from penstock.dialects.graph.sizes import Dim, Size, UnknownSize
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.tensor_data import BadTensor, check_data, is_external, mapped
from penstock.passes.graph.terms import Term, TermBuilder, along
from penstock.passes.graph.values import isolate

DOMAINS = ("", "ai.onnx")
"""The two names of the domain of ONNX's own operators."""

WITH_GRAPHS = ("If", "Loop", "Scan", "SequenceMap")
"""Operators that have graphs inside."""

ON_SEQUENCES = (
    "ConcatFromSequence", "Identity", "Loop", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
    "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
)  # fmt: skip
"""Operators that take sequences, or what may be none."""

Held: TypeAlias = SSAValue | Array
"""What a name of the ONNX graph means: a value of the IR, or an array known at import."""


@dataclass(frozen=True, eq=False)
class TensorSequence:
    """What a name of the ONNX graph means that stands for a sequence of tensors."""

    items: tuple[Held, ...]
    """The first of them."""
    origin: tuple[str, str]
    """The operator, and the name of the node, that made it."""
    lines: SSAValue | None = None
    """What follows them: the lines of a tensor."""
    carried: tuple[Block, int] | None = None
    """The body of the loop that carries it, and which it is of what that carries: `items` are what is appended."""

    @property
    def grows(self) -> bool:
        """Whether it stands in a loop that carries it."""
        return self.carried is not None


Outputs: TypeAlias = Held | Sequence[Held | TensorSequence | None] | None
"""Those of a node: one, several, or None where they cannot be known."""

Importer: TypeAlias = "Callable[[OnnxNode], Outputs]"
"""
Turns a node into ops and returns its outputs; those left out at the end, or None, must not be used. Of a node with
graphs inside it is None in place of all where a gap in one of these keeps them from being known.
"""

T = TypeVar("T")
ImporterT = TypeVar("ImporterT", bound=Importer)

IMPORTERS: dict[str, Importer] = {}
"""The importers of operators by name; see `table.importer_of`."""


def imports(*operators: str) -> Callable[[ImporterT], ImporterT]:
    """Register the decorated function as the importer of operators; one of another domain is `com.example.Op`."""

    def register(importer: ImporterT) -> ImporterT:
        IMPORTERS.update(dict.fromkeys(operators, importer))
        return importer

    return register


def op_called(operator: str) -> type[GraphOp] | None:
    """The op that an operator of ONNX is called after, whatever the case of its letters."""
    return _ops_by_word().get(operator.lower())


@cache
def _ops_by_word() -> dict[str, type[GraphOp]]:
    words = {op_class.name.partition(".")[2].replace("_", ""): op_class for op_class in OPS}
    return {word: op_class for word, op_class in words.items() if issubclass(op_class, GraphOp)}


Int: TypeAlias = int
"""What `int` is where a method of that name hides it."""


class Unsupported(Exception):
    """A node cannot be imported; the message says what about it is not supported, if not all of it."""


def one_of(numbers: Array, what: str) -> Any:
    """The number of an array that holds one; raises VerifyException for another count; `what` is it in the message."""
    if numbers.size != 1:
        raise VerifyException(f"the {what} is one number, and {numbers.size} are given")
    return numbers.ravel()[0]


def _integers(numbers: Array, what: str) -> Array:
    """An array that must be of integers or of sizes; raises VerifyException for others; `what` is it in the message."""
    if numbers.dtype.kind not in "iuO":
        raise VerifyException(f"the {what} must be of integers, got {numbers.dtype}")
    return numbers


class Builder(Protocol):
    """Where the ops and constants of a node go."""

    max_trips: int | None
    """The most lines that a loop gives where a run decides how many there are."""
    counts: dict[SSAValue, SSAValue]
    """For each value of which a run decides how many lines there are, their number."""

    def emit(self, op: GraphOp, name: str) -> SSAValue:
        """Append an op that was made for the node called `name`."""
        ...

    def append(self, op: Operation, name: str) -> None:
        """Append any other op that was made for the node called `name`."""
        ...

    def constant(self, array: Array, name: str) -> SSAValue:
        """The value of a constant; `name` is its name, should it become a weight."""
        ...

    def apply(self, proto: NodeProto, inputs: Sequence[SSAValue]) -> list[SSAValue]:
        """The outputs of a node of the newest operator set, which is right, on values."""
        ...

    def region(self) -> AbstractContextManager[Block]:
        """What is emitted inside goes to a block of its own, which sees no constant that another block makes."""
        ...

    def attempt(self, build: Callable[[], T | None]) -> T | None:
        """What `build` gives; None, with nothing noted, where something is in the way."""
        ...

    def run_inner(
        self, graph: GraphProto, given: Sequence[Held | TensorSequence], names: Any, opset: int
    ) -> list[Held | TensorSequence | None]:
        """What a graph inside a node gives for its inputs, with the `names` around it; None where gaps keep it."""
        ...


class OnnxNode:
    """
    A node, its attributes as Python values, its inputs as IR values or, if known at import, as arrays.

    `opset` is the version of the operator set that gives it its meaning.
    """

    def __init__(
        self,
        proto: NodeProto,
        opset: int,
        inputs: Sequence[Held | None],
        used_outputs: Sequence[bool],
        builder: Builder,
        names: Any = None,
        sequences: Mapping[Int, TensorSequence] | None = None,
    ):
        self.proto = proto
        self.opset = opset
        self.inputs = inputs
        self.sequences = sequences or {}
        """The inputs that are sequences, by their numbers; as inputs these are left out."""
        self.used_outputs = used_outputs
        self.builder = builder
        self.code = NodeCode(self)
        self._attributes = {attribute.name: attribute for attribute in proto.attribute}
        self._names = names

    @property
    def name(self) -> str:
        """The node's name, or that of its first output."""
        return node_name(self.proto)

    @property
    def origin(self) -> tuple[str, str]:
        """The operator and the name of the node, for messages about what it makes."""
        return operator_of(self.proto), self.name

    # Inputs.

    def sequence(self, index: int) -> TensorSequence:
        """An input that must be a sequence."""
        if (found := self.sequences.get(index)) is None:
            raise VerifyException(f"input {index} is no sequence")
        return found

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def held(self, index: int) -> Held:
        """An input that must be given."""
        if index >= len(self.inputs) or (found := self.inputs[index]) is None:
            raise VerifyException(f"input {index} is missing")
        return found

    def value(self, index: int) -> SSAValue:
        """An input as a value; an array becomes a constant."""
        found = self.held(index)
        if isinstance(found, SSAValue):
            return found
        return self.builder.constant(found, self.proto.input[index])

    def optional(self, index: int) -> SSAValue | None:
        """An optional input as a value."""
        return self.value(index) if self.has(index) else None

    def values(self) -> list[SSAValue]:
        """All inputs as values."""
        return [self.value(index) for index in range(len(self.inputs))]

    def type(self, index: int) -> Tensor:
        """The type of an input."""
        return tensor_of(self.value(index))

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an input, with Dims for sizes that are not known."""
        found = self.held(index)
        return tensor_of(found).get_shape() if isinstance(found, SSAValue) else found.shape

    def array(self, index: int, what: str) -> Array:
        """An input that must be known at import; `what` is what a message calls it."""
        found = self._known(index, what)
        if found.dtype == object:
            unknown = next(each for each in found.ravel() if isinstance(each, Dim))
            raise UnknownSize(unknown, f"is part of the {what}, which must be known at import")
        return found

    def _known(self, index: int, what: str) -> Array:
        found = self.held(index)
        if isinstance(found, SSAValue):
            raise Unsupported(f"the {what} must be constant")
        return found

    def sizes_of(self, index: int, what: str) -> list[int]:
        """A list of sizes, of which some may be Dims; they must be computed from constants and shapes."""
        flat = cast(list[Size], _integers(self._known(index, what), what).ravel().tolist())
        return [cast("Int", size) for size in flat]

    def ints_of(self, index: int, what: str) -> list[int]:
        """A list of integers that must be known at import."""
        return [int(number) for number in _integers(self.array(index, what), what).ravel()]

    def listed(self, name: str, index: Int, since: Int) -> list[Int] | None:
        """Integers that are an attribute before operator set `since`, then an input; None if they are not given."""
        if self.opset < since:
            return self.ints(name)
        return self.ints_of(index, name) if self.has(index) else None

    def int_of(self, index: Int, what: str) -> Int:
        """An integer that must be known at import; ONNX lets some of them have a type of floats."""
        number = one_of(self.array(index, what), what)
        if number % 1 != 0:
            raise VerifyException(f"the {what} must be an integer, got {number}")
        return int(number)

    # Attributes.

    def _attribute(self, name: str, default: T, convert: Callable[[AttributeProto], T]) -> T:
        attribute = self._attributes.get(name)
        return default if attribute is None else convert(attribute)

    def int(self, name: str, default: int) -> int:
        """An integer attribute."""
        return self._attribute(name, default, lambda attribute: attribute.i)

    def flag(self, name: str, default: bool) -> bool:
        """An integer attribute that means yes or no."""
        return self._attribute(name, default, lambda attribute: attribute.i != 0)

    def float(self, name: str, default: float) -> float:
        """A float attribute."""
        return self._attribute(name, default, lambda attribute: attribute.f)

    def string(self, name: str, default: str) -> str:
        """A string attribute."""
        return self._attribute(name, default, lambda attribute: attribute.s.decode(errors="replace"))

    def ints(self, name: str) -> list[int] | None:
        """A list of integers, or None if it is not given."""
        return self._attribute(name, None, lambda attribute: list(attribute.ints))

    def floats(self, name: str) -> list[float]:
        """A list of floats, empty if it is not given."""
        attribute = self._attributes.get(name)
        return [] if attribute is None else list(attribute.floats)

    def strings(self, name: str) -> list[str]:
        """A list of strings, empty if it is not given."""
        attribute = self._attributes.get(name)
        return [] if attribute is None else [text.decode(errors="replace") for text in attribute.strings]

    def tensor(self, name: str) -> Array | None:
        """A tensor attribute, or None if it is not given."""
        return self._attribute(name, None, lambda attribute: to_array(attribute.t))

    def raw(self, name: str) -> Any:
        """An attribute as onnx hands it out, or None if it is not given."""
        return self._attribute(name, None, onnx.helper.get_attribute_value)

    # Graphs inside.

    def graph(self, name: str) -> GraphProto:
        """A graph attribute."""
        if (attribute := self._attributes.get(name)) is None:
            raise VerifyException(f"it has no {name}")
        return attribute.g

    def run_inner(self, name: str, given: Sequence[Held | TensorSequence] = ()) -> list[Held | TensorSequence | None]:
        """What a graph inside gives for its inputs; None where a gap keeps a value from being known."""
        return self.builder.run_inner(self.graph(name), given, self._names, self.opset)

    # Results.

    def emit(self, op: GraphOp) -> SSAValue:
        """Append `op`, located at this node, and return its result."""
        return self.builder.emit(op, self.name)

    def constant(self, array: Array, part: str = "constant") -> SSAValue:
        """A constant that belongs to this node."""
        return self.builder.constant(array, f"{self.name}.{part}")

    def scalar(self, number: float, like: SSAValue) -> SSAValue:
        """A constant scalar with the element type of a value."""
        return self.code.number(number, tensor_of(like).element_type).value


class NodeCode(TermBuilder):
    """The ops of a node, written as formulas; `path` is what they are called, by default the name of the node."""

    def __init__(self, node: OnnxNode):
        super().__init__()
        self.node = node
        self.path = node.name

    @contextmanager
    def at(self, part: str) -> Generator[None]:
        """What is emitted inside is called `path/part`."""
        outer, self.path = self.path, f"{self.path}/{part}" if part else self.path
        yield
        self.path = outer

    def emit(self, op: GraphOp) -> Term:
        return self.term(self.node.builder.emit(op, self.path))

    def array(self, array: Array, name: str) -> Term:
        return self.constant(array, name)

    def input(self, index: int, element: Attribute | None = None) -> Term:
        """An input that must be given, as it is or in another element type."""
        found = self.term(self.node.value(index))
        return found if element is None else found.cast(element)

    def number(self, number: float, element: Attribute) -> Term:
        dtype = numpy_dtype(element)
        if dtype.kind in "iu" and number != int(number):
            raise Unsupported(f"{number} as a number of type {dtype}")
        return super().number(number, element)

    def constant(self, array: Array, what: str, element: Attribute | None = None) -> Term:
        """A constant called `name.what`; numbers as `element` if it is given."""
        typed = array if element is None else array.astype(numpy_dtype(element))
        return self.term(self.node.constant(np.ascontiguousarray(typed).reshape(array.shape), what))

    def concat(self, parts: Sequence[Term], axis: int) -> Term:
        """Tensors one after the other along an axis."""
        return self.emit(graph.ConcatOp([part.value for part in parts], axis=axis))

    def onnx(
        self, operator: str, inputs: Sequence[Term | None], outputs: int = 1, **attributes: Any
    ) -> tuple[Term, ...]:
        """The outputs of an operator of ONNX's newest set; None is an input that is left out."""
        names = ["" if each is None else f"x{index}" for index, each in enumerate(inputs)]
        results = [f"y{index}" for index in range(outputs)]
        proto = onnx.helper.make_node(operator, names, results, self.path, **attributes)
        found = self.node.builder.apply(proto, [each.value for each in inputs if each is not None])
        return tuple(map(self.term, found))

    @contextmanager
    def region(self) -> Generator[Block]:
        """What is emitted inside goes to a block of its own, which sees no constant of another."""
        outer, self._numbers = self._numbers, {}
        try:
            with self.node.builder.region() as block:
                yield block
        finally:
            self._numbers = outer

    def loop(
        self,
        carried: Sequence[Term],
        slices: Sequence[Term],
        step: Callable[[Term, Sequence[Term], Sequence[Term]], Sequence[Term]],
        *,
        trips: Int | None = None,
        reverse: bool = False,
        count: SSAValue | None = None,
        condition: SSAValue | None = None,
    ) -> list[Term]:
        """
        The results of a `graph.loop`, whose region `step` makes of the number of the iteration, of what is carried, and
        of a line of each of `slices`. It gives what the loop carries on and then lines, after the condition if the loop
        has one.
        """
        with self.region() as block:
            types = [tensor_type(i64, []), *(tensor_of(each.value) for each in carried)]
            types += [tensor_type(each.element_type, each.shape[1:]) for each in slices]
            index, *rest = [self.term(block.insert_arg(each, len(block.args))) for each in types]
            yielded = step(index, rest[: len(carried)], rest[len(carried) :])
            block.add_op(graph.YieldOp(*(each.value for each in yielded)))
        given = [each.value for each in (*carried, *slices)]
        op = graph.LoopOp(
            given[: len(carried)],
            given[len(carried) :],
            isolate([block]),
            block,
            trips=trips,
            reverse=reverse,
            count=count,
            condition=condition,
        )
        self.node.builder.append(op, self.path)
        return [self.term(value) for value in op.outputs]

    def held(self, held: Held, what: str = "constant") -> Term:
        """What is known of a value as a term; an array becomes a constant."""
        return self.term(held) if isinstance(held, SSAValue) else self.constant(held, what)

    def stack(self, parts: Sequence[Term]) -> Term:
        """Tensors of one shape along a new first axis."""
        return self.concat([part.reshape([1, *part.shape]) for part in parts], 0)

    def positions(self, size: int, axis: int, rank: int) -> Term:
        """0, 1, ... along one axis of a tensor, to broadcast along all others."""
        return self.constant(along(np.arange(size, dtype=np.int64), axis, rank), "positions")


def node_name(proto: NodeProto) -> str:
    """The name of a node, or of its first output if it has none."""
    named = proto.name or next((output for output in proto.output if output), "")
    return named or proto.op_type


def operator_of(proto: NodeProto) -> str:
    """The operator of a node, after its domain if that is not ONNX's own."""
    return proto.op_type if proto.domain in DOMAINS else f"{proto.domain}.{proto.op_type}"


def called(proto: NodeProto) -> str:
    """A node in a message."""
    return f'node "{node_name(proto)}" ({operator_of(proto)})'


def to_array(tensor: onnx.TensorProto) -> Array:
    """
    The array of an ONNX tensor, read-only where it needs no copy.

    Raises Unsupported for element types that the IR does not have, and BadTensor for data that do not fit.
    """
    if tensor.data_type == onnx.TensorProto.STRING:
        raise Unsupported("tensors of strings")
    check_data(tensor)
    dtype = array_dtype(tensor.data_type)
    try:
        array = mapped(tensor, dtype) if is_external(tensor) else numpy_helper.to_array(tensor)
    except (OSError, ValueError) as error:
        raise BadTensor(str(error)) from None
    return array if array.dtype == dtype else array.astype(dtype)


_DTYPES: Mapping[str, Any] = {
    "BOOL": np.bool_,
    "FLOAT": np.float32,
    "DOUBLE": np.float64,
    **{name.upper(): name for name in ("float16", "int8", "int16", "int32", "int64")},
    **{name.upper(): name for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name.upper(): getattr(ml_dtypes, name) for name in ("bfloat16", "int2", "int4", "uint2", "uint4")},
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "FLOAT8E8M0": ml_dtypes.float8_e8m0fnu,
    "FLOAT4E2M1": ml_dtypes.float4_e2m1fn,
}
"""By name: releases of onnx differ in which of these they have, and in what they map them to."""


def array_dtype(data_type: int) -> np.dtype[np.generic]:
    """The NumPy type of an ONNX element type; raises Unsupported for one that the IR does not have."""
    kinds = onnx.TensorProto
    name = kinds.DataType.Name(data_type) if data_type in kinds.DataType.values() else str(data_type)
    if name in _DTYPES:
        return np.dtype(_DTYPES[name])
    raise Unsupported(f"elements of type {name}")
