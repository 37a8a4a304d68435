# SPDX-License-Identifier: Apache-2.0
"""
What every op of the graph dialect shares: the base class, pattern kinds, weights and shape helpers.

An op declares its operands, its properties, and `infer`, from their types and Python values to the type of its one
result. The constructor and the verifier follow: the one calls `infer` when no result type is given, the other compares
the result with it. Integers are signless (signed) or `ui8` to `ui64`.

A size may be unknown, `?`: inference sees a `Dim` in its place (see `sizes`), and each op says what it can. A
result has `?` exactly where inference cannot tell a number: a type that says more, or less, is refused.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, TypeAlias, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    AnyTensorTypeConstr,
    BoolAttr,
    DenseArrayBase,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
    NoneAttr,
    Signedness,
    StringAttr,
    TensorType,
    f32,
    f64,
    i64,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Operation, OpResult, ParametrizedAttribute, SSAValue
from xdsl.irdl import (
    AttrConstraint,
    IRDLOperation,
    PropertyDef,
    irdl_attr_definition,
    result_def,
    traits_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.rewriter import Rewriter
from xdsl.traits import OpTrait, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.str_enum import StrEnum

from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.graph.sizes import Dim, is_known, may_equal, unknown_size

Tensor: TypeAlias = TensorType[Attribute]
Value: TypeAlias = SSAValue | Operation
Held: TypeAlias = Value | Sequence[Value] | None
"""What the constructor of an op takes for an operand: a value, several, or none for an optional one."""
PropertyValue: TypeAlias = Attribute | float | str | Sequence[int] | None
"""What it takes for a property: numbers, text and lists of integers become attributes of the declared type."""

TENSOR: AttrConstraint[Tensor] = AnyTensorTypeConstr
"""The constraint of every operand and result; the base class checks the rest."""
INTS = DenseArrayBase.constr(IntegerType(64))
"""The constraint of a list of integers."""


class PatternKind(StrEnum):
    """
    How an op may be fused, after TVM's operator patterns; `<` compares, the later the harder to fuse.

    See Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018.
    """

    ELEMENTWISE = "elementwise"
    """Each output element reads the input elements at its own index."""
    BROADCAST = "broadcast"
    """As elementwise, with operands repeated along dimensions."""
    INJECTIVE = "injective"
    """Each output element reads at most one element of each operand, at an index of its own."""
    REDUCTION = "reduction"
    """Combines elements along dimensions."""
    COMPLEX_OUT_FUSABLE = "complex_out_fusable"
    """A contraction or a window op, which can take elementwise ops onto its output."""
    OPAQUE = "opaque"
    """Is not fused."""

    @property
    def level(self) -> int:
        """The position in the order, from 0."""
        return list(PatternKind).index(self)

    def __lt__(self, value: str, /) -> bool:
        return self.level < PatternKind(value).level

    def __le__(self, value: str, /) -> bool:
        return self.level <= PatternKind(value).level

    def __gt__(self, value: str, /) -> bool:
        return self.level > PatternKind(value).level

    def __ge__(self, value: str, /) -> bool:
        return self.level >= PatternKind(value).level


@dataclass(frozen=True)
class HasPatternKind(OpTrait):
    """How it may be fused: its pattern kind."""

    kind: PatternKind


@dataclass(frozen=True)
class KeepsFinite(OpTrait):
    """The result is finite where the operands are: what is beyond the end of a tensor may hold anything finite."""


@dataclass(frozen=True)
class SelectsElements(OpTrait):
    """Every element of the result is one of the first operand: quantised integers serve as well as their numbers."""


@dataclass(frozen=True)
class HasQuantizedForm(OpTrait):
    """Runtimes compute it between a dequantised operand and a quantised result."""


@dataclass(frozen=True)
class IsConstantAlmostEverywhere(OpTrait):
    """The derivative is 0 wherever there is one: nothing flows back through it."""


@irdl_attr_definition
class PatternAttr(EnumAttribute[PatternKind]):
    """A pattern kind as an attribute: `#graph.pattern<reduction>`, or the bare word in `graph.fused`."""

    name = "graph.pattern"

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self.data.value)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> PatternKind:
        with parser.in_angle_brackets():
            return parser.parse_str_enum(PatternKind)


@irdl_attr_definition
class WeightAttr(ParametrizedAttribute):
    """A reference to an entry of the weight store: `#graph.weight<"fc.weight">`."""

    name = "graph.weight"

    key: StringAttr
    """The name of the entry."""

    def __init__(self, key: str | StringAttr):
        super().__init__(StringAttr(key) if isinstance(key, str) else key)


@dataclass(frozen=True)
class Elements:
    """A set of element types, and what a message calls it."""

    words: str
    contains: Callable[[Attribute], bool]

    def check(self, tensor: Tensor, op_name: str) -> None:
        """Raise VerifyException unless the elements of `tensor` belong to the set."""
        if not self.contains(tensor.element_type):
            raise VerifyException(f"{op_name} works on {self.words}, not on {tensor.element_type}")


def is_float(element: Attribute) -> bool:
    """Whether an element type is a floating point type."""
    return isinstance(element, AnyFloat)


def _as_integer(element: Attribute) -> IntegerType | None:
    return cast(IntegerType, element) if isinstance(element, IntegerType) else None


def is_bool(element: Attribute) -> bool:
    """Whether an element type is the type of truth values, i1."""
    found = _as_integer(element)
    return found is not None and found.width.data == 1


def is_integer(element: Attribute) -> bool:
    """Whether an element type is an integer of a byte or more, signless or unsigned."""
    found = _as_integer(element)
    return found is not None and found.width.data >= 8 and found.signedness.data != Signedness.SIGNED


def is_narrow_integer(element: Attribute) -> bool:
    """Whether an element type is an integer of 2 or 4 bits: it is stored, moved and converted, not computed with."""
    found = _as_integer(element)
    return found is not None and found.width.data in (2, 4) and found.signedness.data != Signedness.SIGNED


def is_unsigned(element: Attribute) -> bool:
    """Whether an element type is an unsigned integer type."""
    found = _as_integer(element)
    return found is not None and found.signedness.data == Signedness.UNSIGNED


def integer_bounds(element: Attribute) -> range | None:
    """The numbers that an integer type holds, i1 being 0 and 1; None for another type."""
    found = _as_integer(element)
    if found is None:
        return None
    width = found.width.data
    if width == 1 or is_unsigned(found):
        return range(1 << width)
    return range(-(1 << (width - 1)), 1 << (width - 1))


FLOATS = Elements("floats", is_float)
BOOLS = Elements("i1", is_bool)
INTEGERS = Elements("integers", is_integer)
NUMBERS = Elements("floats and integers", lambda e: is_float(e) or is_integer(e))
SIGNED_NUMBERS = Elements("floats and signed integers", lambda e: is_float(e) or (is_integer(e) and not is_unsigned(e)))
ANY_ELEMENTS = Elements(
    "floats, integers and i1", lambda e: is_float(e) or is_integer(e) or is_narrow_integer(e) or is_bool(e)
)


def tensor_type(element: Attribute, sizes: Sequence[int]) -> Tensor:
    """The type of a tensor whose sizes may be Dims: for inference, and while a graph is built."""
    if all(type(size) is int for size in sizes):
        return _static_type(element, tuple(sizes))
    return TensorType(element, [IntAttr(size) for size in sizes])


@lru_cache(maxsize=4096)
def _static_type(element: Attribute, sizes: tuple[int, ...]) -> Tensor:
    """Without building it anew each time."""
    return TensorType(element, sizes)


def tensor_of(value: Value) -> Tensor:
    """
    The type of a value that must be a tensor, with a Dim of its own for each `?`.

    Raises VerifyException if it is none, or has an encoding.
    """
    # `SSAValue.get` and comparing attributes take longer than the rest of it.
    found = value.type if isinstance(value, OpResult) else SSAValue.get(value).type
    if not isinstance(found, TensorType):
        raise VerifyException(f"expected a tensor, found {found}")
    tensor = cast(Tensor, found)
    if not isinstance(tensor.encoding, NoneAttr):
        raise VerifyException(f"tensors have no encoding at graph level, found {tensor}")
    if DYNAMIC_INDEX in (shape := tensor.get_shape()):
        sizes = [unknown_size() if is_known(size) and size == DYNAMIC_INDEX else size for size in shape]
        return tensor_type(tensor.element_type, sizes)
    return tensor


def erased(tensor: Tensor, *, nameless_only: bool = False) -> Tensor:
    """The type as it stands in the IR: `?` for each Dim, or only for those that depend on a nameless size."""
    shape = tensor.get_shape()
    erasable = [isinstance(size, Dim) and (size.is_nameless or not nameless_only) for size in shape]
    if not any(erasable):
        return tensor
    return tensor_type(
        tensor.element_type, [DYNAMIC_INDEX if erase else size for erase, size in zip(erasable, shape, strict=True)]
    )


def is_static(type: Attribute) -> bool:
    """Whether a type has no size that is unknown."""
    return not isinstance(type, TensorType) or DYNAMIC_INDEX not in cast(Tensor, type).get_shape()


def require(condition: bool, message: str | Callable[[], str]) -> None:
    """Raise VerifyException with `message`, a function where it takes time to make, unless `condition` holds."""
    if not condition:
        raise VerifyException(message if isinstance(message, str) else message())


def shape_text(shape: Sequence[int]) -> str:
    """A shape as types print it, `2x3`; a scalar's is `scalar`."""
    return "x".join(str(size) for size in shape) or "scalar"


def same_element(tensors: Sequence[Tensor], op_name: str) -> Attribute:
    """The one element type of all `tensors`; raises VerifyException if there are several."""
    first = tensors[0].element_type
    for other in tensors[1:]:
        require(
            other.element_type == first,
            lambda other=other: f"{op_name} needs one element type, found {first} and {other.element_type}",
        )
    return first


# the type that a contraction sums in


def accumulated(
    factors: Sequence[Tensor], addend: Tensor | None, accumulator: Attribute | None, op_name: str
) -> Attribute:
    """
    The element type of the sum of products of the `factors`, and of the `addend` (a bias) on top of it.

    Without an `accumulator` it is the one type of all operands, to which the sum is rounded. With one, each product of
    factors is computed and summed in that type: floats of one type are widened to it, integers of any signedness to
    one that holds all their numbers. Raises VerifyException for an accumulator that narrows or has nothing to do with
    the factors.
    """
    for factor in factors:
        NUMBERS.check(factor, op_name)
    if accumulator is None:
        return same_element(factors if addend is None else (*factors, addend), op_name)
    elements = [factor.element_type for factor in factors]
    if all(is_float(element) for element in elements):
        same_element(factors, op_name)
    for element in elements:
        require(
            is_float(element) == is_float(accumulator) and (is_float(element) or is_integer(accumulator)),
            lambda element=element: (
                f"{op_name} cannot accumulate {element} in {accumulator}: floats are summed in floats, and integers in"
                " integers"
            ),
        )
        require(
            holds(accumulator, element),
            f"{op_name} cannot accumulate {element} in {accumulator}, which does not hold every {element}",
        )
    if addend is not None:
        require(
            addend.element_type == accumulator,
            f"{op_name} accumulates in {accumulator} and adds a {addend}: their element types must agree",
        )
    return accumulator


def summed_in(op: Operation) -> Attribute:
    """The type in which a contraction, or an attention, sums: the one that it names, or that for its first operand."""
    named = op.properties.get("accumulator")
    return accumulator_of(tensor_of(op.operands[0]).element_type) if named is None else named


def holds(wide: Attribute, narrow: Attribute) -> bool:
    """Whether every number of the type `narrow` is one of the type `wide`."""
    if wide == narrow:
        return True
    inner, outer = integer_bounds(narrow), integer_bounds(wide)
    if inner is not None and outer is not None:
        return outer.start <= inner.start and inner.stop <= outer.stop
    if not isinstance(wide, AnyFloat) or not isinstance(narrow, AnyFloat):
        return False
    return narrow.bitwidth < wide.bitwidth


# shapes


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """
    The shape that all `shapes` broadcast to by NumPy's rule; raises VerifyException if there is none.

    An unknown size and a known one above 1 give the known one. Two unknown ones give an unknown one.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, start=rank - len(shape)):
            before = result[dim]
            if size == 1 or size == before:
                continue
            if before == 1:
                result[dim] = size
            elif any(may_equal(*pair) for pair in ((before, size), (before, 1), (size, 1))):
                known = [each for each in (before, size) if is_known(each)]
                result[dim] = known[0] if known else unknown_size()
            else:
                words = " and ".join(shape_text(each) for each in shapes)
                raise VerifyException(
                    f"shapes {words} do not broadcast: {before} against {size} in dimension {dim} of {rank}"
                )
    return tuple(result)


def normalized_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front; raises VerifyException unless -rank <= axis < rank."""
    require(-rank <= axis < rank, f"axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def check_axis(axis: int, rank: int) -> None:
    """Raise VerifyException unless 0 <= axis < rank."""
    require(0 <= axis < rank, f"axis {axis} is outside 0 to {rank - 1} (rank {rank})")


def ints(values: Sequence[int]) -> DenseArrayBase[IntegerType]:
    """A list of integers as a property."""
    return DenseArrayBase.from_list(i64, [int(value) for value in values])


def integer(value: int) -> IntegerAttr[IntegerType]:
    """An integer as a property."""
    return IntegerAttr(int(value), i64)


def boolean(value: bool) -> BoolAttr:
    """A truth value as a property."""
    return IntegerAttr.from_bool(bool(value))


def single(value: float) -> FloatAttr[Float32Type]:
    """A number as an f32 property."""
    return FloatAttr(float(value), f32)


def double(value: float) -> FloatAttr[Float64Type]:
    """A number as an f64 property."""
    return FloatAttr(float(value), f64)


def python_value(attribute: Attribute | None) -> Any:
    """A property as a number, text or tuple of integers; what is none of these, and None, as it is."""
    match attribute:
        case IntegerAttr(type=IntegerType(width=IntAttr(data=1))):
            return bool(attribute)
        case IntegerAttr() | FloatAttr():
            return attribute.value.data
        case StringAttr():
            return attribute.data
        case DenseArrayBase():
            return cast(DenseArrayBase[IntegerType], attribute).get_values()
        case _:
            return attribute


def property_of(value: PropertyValue, declared: PropertyDef) -> Attribute | None:
    """A Python value as the property that is declared, with its default for None."""
    default = declared.default_value
    if value is None or isinstance(value, Attribute):
        return default if value is None else value
    if isinstance(value, str):
        return StringAttr(value)
    if isinstance(value, Sequence):
        return ints(value)
    if isa(default, FloatAttr):
        return FloatAttr(float(value), default.type)
    if FloatAttr in (declared.constr.get_bases() or ()):
        return double(value)
    is_flag = isinstance(value, bool) or (isa(default, IntegerAttr) and is_bool(default.type))
    return boolean(bool(value)) if is_flag else integer(cast(int, value))


def _type_of(held: Held) -> Tensor | list[Tensor] | None:
    """The type of an operand, or of all that one name stands for."""
    if held is None or isinstance(held, SSAValue | Operation):
        return None if held is None else tensor_of(held)
    return [tensor_of(value) for value in held]


@cache
def _parameters(op_class: type[GraphOp]) -> tuple[str, ...]:
    return tuple(inspect.signature(op_class.infer).parameters)


def set_type(value: SSAValue, type: Attribute) -> None:
    """Give a value another type; the caller makes its uses agree."""
    if value.type != type:
        Rewriter.replace_value_with_new_type(value, type)


class GraphOp(IRDLOperation, ABC):
    """An operator: tensors in, one tensor out, no effects, a result type that follows from the rest."""

    VERIFIES_ALONE: ClassVar[bool] = True
    """See `penstock.dialects.verifier`."""

    DEFAULT_AXIS: ClassVar[int | None] = None
    """The `axis` that the constructor takes where none is given; None for an op that has none, or declares it."""

    result = result_def(TENSOR)

    traits = traits_def(Pure())

    def __init__(self, *operands: Held, result_type: Tensor | None = None, **values: Held | PropertyValue):
        """
        The op on `operands`, in the order of their definition; optional ones, and properties as Python values, by name.

        The result type is inferred unless it is given. Raises VerifyException if they clash.
        """
        definition = self.get_irdl_definition()
        names = [name for name, _ in definition.operands]
        unknown = sorted(values.keys() - {*names, *definition.properties})
        if unknown or len(operands) > len(names):
            words = ", ".join(unknown) or f"{len(operands)} operands"
            raise TypeError(f"{self.name} takes the operands {names} and {[*definition.properties]}, not {words}")
        held = {name: cast(Held, values.pop(name, None)) for name in names}
        held |= dict(zip(names, operands, strict=False))
        plain = {name: python_value(value) if isinstance(value, Attribute) else value for name, value in values.items()}
        self.fill_in(cast(dict[str, PropertyValue], plain), *map(_type_of, held.values()))
        properties = {
            name: property_of(cast(PropertyValue, plain.get(name)), each)
            for name, each in definition.properties.items()
        }
        inferred = result_type or self._inferred(held, properties)
        kept = erased(inferred, nameless_only=True)
        super().__init__(operands=list(held.values()), result_types=[kept], properties=properties)

    @classmethod
    def fill_in(cls, values: dict[str, PropertyValue], *types: Any) -> None:
        """
        Complete the `values` that the constructor makes properties of, from the types of the operands.

        An axis is counted from the front of the first operand.
        """
        if isinstance(axis := values.get("axis", cls.DEFAULT_AXIS), int):
            first = cast("list[Tensor]", types[0])[0] if isinstance(types[0], list) else cast(Tensor, types[0])
            values["axis"] = normalized_axis(axis, first.get_num_dims())

    def __post_init__(self) -> None:
        super().__post_init__()
        # In one order, however they came, so that the generic form is a fixed point as well.
        declared = self.get_irdl_definition().properties
        known = {name: self.properties[name] for name in declared if name in self.properties}
        self.properties = known | self.properties

    @property
    def result_type(self) -> Tensor:
        """The type of the result."""
        return tensor_of(self.result)

    @classmethod
    @abstractmethod
    def infer(cls, *arguments: Any, **more: Any) -> Tensor:
        """
        The type of the result; raises VerifyException if the arguments clash.

        Its parameters are called as operands, of which it gets the types, and as properties, of which it gets the
        Python values.
        """

    def infer_type(self) -> Tensor:
        """The result type that the operands and properties give; raises VerifyException if they clash."""
        held = {name: getattr(self, name) for name, _ in self.get_irdl_definition().operands}
        return self._inferred(held, self.properties)

    @classmethod
    def _inferred(cls, operands: Mapping[str, Held], properties: Mapping[str, Attribute | None]) -> Tensor:
        declared = cls.get_irdl_definition().properties
        arguments: dict[str, Any] = {}
        for name in _parameters(cls):
            if name in operands:
                arguments[name] = _type_of(operands[name])
            else:
                found = properties.get(name)
                arguments[name] = python_value(declared[name].default_value if found is None else found)
        return cls.infer(**arguments)

    def is_identity(self) -> bool:
        """Whether the result is the operand, for an op that only moves elements; provably so if sizes are unknown."""
        return False

    def verify_(self) -> None:
        for value in (*self.operands, *self.results):
            ANY_ELEMENTS.check(tensor_of(value), self.name)
        expected, stated = erased(self.infer_type()), self.result.type
        if stated != expected:  # types are written out only for the message: every verification comes here
            raise VerifyException(
                f"{self.name} has the result type {stated}, but its operands and properties give {expected}"
            )

    def rebind(self, sizes: Mapping[str, int]) -> None:
        """
        Take over what has become known: operands have new types, and named sizes have the numbers `sizes`.

        Raises VerifyException if the op is invalid with them.
        """
        set_type(self.result, erased(self.infer_type()))


def pattern_kind(op: Operation) -> PatternKind:
    """The pattern kind of any op: that of the trait, or of a `graph.fused`; opaque for all others."""
    if isinstance(pattern := op.properties.get("pattern"), PatternAttr):
        return pattern.data
    trait = op.get_trait(HasPatternKind)
    return PatternKind.OPAQUE if trait is None else trait.kind
