"""One node of an ONNX graph as its importer function sees it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, numpy_helper
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import OPS, GraphOp, Tensor, tensor_of
from penstock.dialects.graph.kernel import KernelOp
from penstock.dialects.graph.sizes import Dim, Size, UnknownSize
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.tensor_data import BadTensor, check_data, is_external, mapped
from penstock.passes.graph.terms import Term, TermBuilder

DOMAINS = ("", "ai.onnx")
"""The two names of the domain of ONNX's own operators."""

Held: TypeAlias = SSAValue | Array
"""What a name of the ONNX graph means: a value of the IR, or an array known at import."""

Importer: TypeAlias = "Callable[[OnnxNode], Held | Sequence[Held | None]]"
"""Turns a node into ops and returns its outputs; those left out at the end, or None, must not be used."""

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


class Builder(Protocol):
    """Where the ops and constants of a node go."""

    def emit(self, op: GraphOp, name: str) -> SSAValue:
        """Append an op that was made for the node called `name`."""
        ...

    def emit_kernel(self, op: KernelOp, name: str) -> None:
        """Append the call of a kernel that was made for the node called `name`."""
        ...

    def constant(self, array: Array, name: str) -> SSAValue:
        """The value of a constant; `name` is its name, should it become a weight."""
        ...

    def apply(self, proto: NodeProto, inputs: Sequence[SSAValue]) -> SSAValue:
        """The first output of a node of the newest operator set, which is right, on values."""
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
    ):
        self.proto = proto
        self.opset = opset
        self.inputs = inputs
        self.used_outputs = used_outputs
        self.builder = builder
        self.code = NodeCode(self)
        self._attributes = {attribute.name: attribute for attribute in proto.attribute}

    @property
    def name(self) -> str:
        """The node's name, or that of its first output."""
        return node_name(self.proto)

    # Inputs.

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
        flat = cast(list[Size], self._known(index, what).ravel().tolist())
        return [cast("Int", size) for size in flat]

    def ints_of(self, index: int, what: str) -> list[int]:
        """A list of integers that must be known at import."""
        return [int(number) for number in self.array(index, what).ravel()]

    def listed(self, name: str, index: Int, since: Int) -> list[Int] | None:
        """Integers that are an attribute before operator set `since`, then an input; None if they are not given."""
        if self.opset < since:
            return self.ints(name)
        return self.ints_of(index, name) if self.has(index) else None

    def int_of(self, index: Int, what: str) -> Int:
        """An integer that must be known at import."""
        return int(one_of(self.array(index, what), what))

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

    def positions(self, size: int, axis: int, rank: int) -> Term:
        """0, 1, ... along one axis of a tensor, to broadcast along all others."""
        return self.constant(along(np.arange(size, dtype=np.int64), axis, rank), "positions")


def along(array: Array, axis: int, rank: int) -> Array:
    """Numbers along one axis of a tensor of `rank`, to broadcast along all others."""
    return array.reshape([-1 if dim == axis else 1 for dim in range(rank)])


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
