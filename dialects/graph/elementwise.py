# SPDX-License-Identifier: Apache-2.0
"""
Operators on each element: of one operand, of two that broadcast by NumPy's rule, and of three.

Each has a `formula` (see `formula`), from which the interpreter and the lowering to tensors follow.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from xdsl.dialects.builtin import AnyFloat, Float32Type, Float64Type, FloatAttr, IntegerType, StringAttr, i1
from xdsl.ir import Attribute
from xdsl.irdl import (
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.graph.base import (
    ANY_ELEMENTS,
    BOOLS,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED_NUMBERS,
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    HasQuantizedForm,
    IsConstantAlmostEverywhere,
    KeepsFinite,
    PatternKind,
    SelectsElements,
    Tensor,
    Value,
    broadcast_shapes,
    integer_bounds,
    require,
    same_element,
    single,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.formula import Scalar, ScalarArithmetic, UnknownFunction, function
from penstock.dialects.graph.number import Number
from penstock.dialects.graph.sizes import may_broadcast_to

T = TypeVar("T")
V = TypeVar("V")
OpT = TypeVar("OpT", bound="PointwiseOp")


class PointwiseOp(GraphOp, ABC):
    """An op whose operands broadcast to its result, of which each element depends on theirs at its own index."""

    ACCEPTS: ClassVar[Elements]
    """The element types it is defined on."""

    def formula(self, *elements: Any, **more: Any) -> Any:
        """From a `Scalar` for each operand to that of the result; an op without one has registered functions."""
        raise NotImplementedError

    def evaluate(self, elements: Sequence[V], arithmetic: ScalarArithmetic[V]) -> V:
        """The formula on elements of some arithmetic; raises UserError, at the op, for an unknown function."""
        try:
            return self.formula(*(Scalar(element, arithmetic) for element in elements)).value
        except UnknownFunction as error:
            raise UserError(f"{self.name}: {error}", loc=location_of(self), notes=error.notes) from None

    @classmethod
    def has_formula(cls) -> bool:
        """Whether there is a formula."""
        return cls.formula is not PointwiseOp.formula


class UnaryOp(PointwiseOp, ABC):
    """An op that maps each element of `x` on its own; the result has the type of `x`."""

    ACCEPTS: ClassVar[Elements] = FLOATS

    T: ClassVar = VarConstraint("T", TENSOR)

    x = operand_def(T)
    result = result_def(T)

    traits = traits_def(HasPatternKind(PatternKind.ELEMENTWISE))
    assembly_format = "$x attr-dict `:` type($x)"

    @classmethod
    def infer(cls, x: Tensor) -> Tensor:
        """The type of `x`."""
        cls.ACCEPTS.check(x, cls.name)
        return x


_STEP = KeepsFinite(), IsConstantAlmostEverywhere()
"""The traits of a function in steps."""


def _declared(base: type[OpT], name: str, summary: str, *traits: Any, accepts: Elements | None = None) -> type[OpT]:
    """An op that is a function which every arithmetic has, without properties."""
    body: dict[str, Any] = {"name": f"graph.{name}", "formula": function(name, summary), "traits": traits_def(*traits)}
    body |= {"__doc__": summary, "__module__": __name__}
    if accepts is not None:
        body |= {"ACCEPTS": accepts, "__annotations__": {"ACCEPTS": ClassVar[Elements]}}
    words = "".join(word.capitalize() for word in name.split("_"))
    made: Any = irdl_op_definition(type(f"{words}Op", (base,), body))
    return made


AbsOp = _declared(UnaryOp, "abs", "The absolute value.", KeepsFinite(), accepts=NUMBERS)
NegOp = _declared(UnaryOp, "neg", "The negative; integers wrap.", KeepsFinite(), accepts=SIGNED_NUMBERS)


@irdl_op_definition
class IdentityOp(UnaryOp):
    """x itself."""

    name = "graph.identity"
    ACCEPTS: ClassVar[Elements] = ANY_ELEMENTS
    traits = traits_def(KeepsFinite(), SelectsElements())
    formula = function("identity", "x itself.")

    def is_identity(self) -> bool:
        return True


ExpOp = _declared(UnaryOp, "exp", "e to the power of x.")
LogOp = _declared(UnaryOp, "log", "The natural logarithm.")
SqrtOp = _declared(UnaryOp, "sqrt", "The square root.")
ErfOp = _declared(UnaryOp, "erf", "The error function.", KeepsFinite())
TanhOp = _declared(UnaryOp, "tanh", "The hyperbolic tangent.", KeepsFinite(), HasQuantizedForm())
FloorOp = _declared(UnaryOp, "floor", "The next integral number towards minus infinity.", *_STEP)
CeilOp = _declared(UnaryOp, "ceil", "The next integral number towards plus infinity.", *_STEP)
RoundOp = _declared(UnaryOp, "round", "The nearest integral number; of two, the even one.", *_STEP)
SignOp = _declared(UnaryOp, "sign", "-1, 0 or 1.", KeepsFinite(), IsConstantAlmostEverywhere(), accepts=NUMBERS)
SinOp = _declared(UnaryOp, "sin", "The sine of x, in radians.")
CosOp = _declared(UnaryOp, "cos", "The cosine of x, in radians.")
TanOp = _declared(UnaryOp, "tan", "The tangent of x, in radians.")
AsinOp = _declared(UnaryOp, "asin", "The inverse sine, in radians; NaN outside -1 to 1.")
AcosOp = _declared(UnaryOp, "acos", "The inverse cosine, in radians; NaN outside -1 to 1.")
AtanOp = _declared(UnaryOp, "atan", "The inverse tangent, in radians.")
SinhOp = _declared(UnaryOp, "sinh", "The hyperbolic sine.")
CoshOp = _declared(UnaryOp, "cosh", "The hyperbolic cosine.")
AsinhOp = _declared(UnaryOp, "asinh", "The inverse hyperbolic sine.")
AcoshOp = _declared(UnaryOp, "acosh", "The inverse hyperbolic cosine; NaN below 1.")
AtanhOp = _declared(UnaryOp, "atanh", "The inverse hyperbolic tangent; NaN outside -1 to 1.")


@irdl_op_definition
class NotOp(UnaryOp):
    """The logical negation."""

    name = "graph.not"
    ACCEPTS: ClassVar[Elements] = BOOLS

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        return x.apply("bitwise_xor", 1)


@irdl_op_definition
class ReciprocalOp(UnaryOp):
    """1 / x."""

    name = "graph.reciprocal"

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        return x.number(1) / x


@irdl_op_definition
class ReluOp(UnaryOp):
    """max(x, 0)."""

    name = "graph.relu"
    ACCEPTS: ClassVar[Elements] = SIGNED_NUMBERS
    traits = traits_def(KeepsFinite(), HasQuantizedForm())

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        return x.max(0)


@irdl_op_definition
class SigmoidOp(UnaryOp):
    """1 / (1 + exp(-x)); where exp overflows to infinity the result is the right 0."""

    name = "graph.sigmoid"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        one = x.number(1)
        return one / (one + (-x).apply("exp"))


@irdl_op_definition
class SoftplusOp(UnaryOp):
    """log(1 + exp(x)), as max(x, 0) + log1p(exp(-|x|)), which does not overflow."""

    name = "graph.softplus"

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        rest = (-abs(x)).apply("exp").apply("log1p")
        return x.max(0) + rest


@irdl_op_definition
class HardSwishOp(UnaryOp):
    """x * max(0, min(1, x / 6 + 1/2))."""

    name = "graph.hard_swish"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        return x * (x * (1 / 6) + 0.5).clamp(0, 1)


@irdl_op_definition
class LeakyReluOp(UnaryOp):
    """x where x >= 0, else alpha * x."""

    name = "graph.leaky_relu"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(0.01))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? attr-dict `:` type($x)"

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        bent = x * self.alpha.value.data
        return (x >= 0).where(x, bent)


@irdl_op_definition
class EluOp(UnaryOp):
    """x where x >= 0, else alpha * (exp(x) - 1)."""

    name = "graph.elu"
    traits = traits_def(KeepsFinite())

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? attr-dict `:` type($x)"

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        bent = x.number(self.alpha.value.data) * x.apply("expm1")
        return (x >= 0).where(x, bent)


SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


@irdl_op_definition
class SeluOp(UnaryOp):
    """gamma * x where x > 0, else gamma * alpha * (exp(x) - 1)."""

    name = "graph.selu"
    traits = traits_def(KeepsFinite())

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(SELU_ALPHA))
    gamma = prop_def(FloatAttr[Float32Type], default_value=single(SELU_GAMMA))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? (`gamma` custom<Number>($gamma)^)? attr-dict `:` type($x)"

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        bent = x.number(self.alpha.value.data) * x.apply("expm1")
        line = (x > 0).where(x, bent)
        return x.number(self.gamma.value.data) * line


@irdl_op_definition
class HardSigmoidOp(UnaryOp):
    """max(0, min(1, alpha * x + beta))."""

    name = "graph.hard_sigmoid"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(0.2))
    beta = prop_def(FloatAttr[Float32Type], default_value=single(0.5))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? (`beta` custom<Number>($beta)^)? attr-dict `:` type($x)"

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        return (x * self.alpha.value.data + self.beta.value.data).clamp(0, 1)


@irdl_op_definition
class GeluOp(UnaryOp):
    """
    x * Phi(x), Phi the normal distribution function: by erf (`none`), or with `tanh` as
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
    """

    name = "graph.gelu"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())

    approximate = prop_def(StringAttr, default_value=StringAttr("none"))
    """"none" or "tanh"."""
    assembly_format = "$x (`approximate` $approximate^)? attr-dict `:` type($x)"

    def verify_(self) -> None:
        super().verify_()
        require(
            self.approximate.data in ("none", "tanh"),
            f'approximate is "none" or "tanh", not "{self.approximate.data}"',
        )

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        if self.approximate.data == "tanh":
            cubic = x.number(0.044715) * x * x * x
            bent = (x.number(math.sqrt(2 / math.pi)) * (x + cubic)).apply("tanh")
        else:
            bent = (x * math.sqrt(0.5)).apply("erf")
        half = x.number(0.5) * x
        return half * (x.number(1) + bent)


@irdl_op_definition
class ClipOp(UnaryOp):
    """min(max(x, min), max) with constant bounds; a bound that is absent does not bind."""

    name = "graph.clip"
    ACCEPTS: ClassVar[Elements] = NUMBERS
    traits = traits_def(KeepsFinite(), HasQuantizedForm())

    min = opt_prop_def(FloatAttr[Float64Type])
    max = opt_prop_def(FloatAttr[Float64Type])
    custom_directives = (Number,)
    assembly_format = "$x (`min` custom<Number>($min)^)? (`max` custom<Number>($max)^)? attr-dict `:` type($x)"

    def verify_(self) -> None:
        super().verify_()
        given = [each.value.data for each in (self.min, self.max) if each is not None]
        is_integral = integer_bounds(tensor_of(self.x).element_type) is not None
        require(not (is_integral and any(map(math.isnan, given))), "a bound of integers is NaN")

    def formula(self, x: Scalar[T]) -> Scalar[T]:
        low, high = self.bounds
        x = x if low is None else x.max(low)
        return x if high is None else x.min(high)

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The bounds; one that the integer type cannot hold is its nearest number."""
        numbers = integer_bounds(tensor_of(self.x).element_type)
        given = [None if each is None else each.value.data for each in (self.min, self.max)]
        if numbers is not None:
            low, high = numbers[0], numbers[-1]
            # The largest number as a float may be beyond the type.
            given = [
                each if each is None else high if each >= float(high) else low if each <= low else int(each)
                for each in given
            ]
        return given[0], given[1]


class ConversionOp(PointwiseOp, ABC):
    """An op whose result has the shape of `x` and elements of another type, which the constructor takes."""

    x = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.ELEMENTWISE))
    assembly_format = "$x attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, element_type: Attribute):
        super().__init__(x, result_type=self.infer(tensor_of(x), element_type))

    @classmethod
    def infer(cls, x: Tensor, element_type: Attribute) -> Tensor:
        """The shape of `x` with other elements."""
        return tensor_type(element_type, x.get_shape())

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.result_type.element_type)

    def is_identity(self) -> bool:
        return self.x.type == self.result.type


@irdl_op_definition
class CastOp(ConversionOp):
    """
    The elements of `x` in the element type of the result.

    Floats to integers truncate towards zero; anything to i1 is `x != 0`.
    """

    name = "graph.cast"
    traits = traits_def(KeepsFinite())


def _bytes_of(element: Attribute) -> int:
    """The bytes of an element whose bits may be read as another type; 0 for the types below a byte."""
    if isa(element, IntegerType):
        return 1 if element.width.data == 1 else element.width.data // 8
    assert isinstance(element, AnyFloat)
    return element.bitwidth // 8


@irdl_op_definition
class BitcastOp(ConversionOp):
    """The bits of each element of `x`, read as the element type of the result; i1 is a byte that is 0 or 1."""

    name = "graph.bitcast"

    @classmethod
    def infer(cls, x: Tensor, element_type: Attribute) -> Tensor:
        """The shape of `x` with other elements."""
        before, after = _bytes_of(x.element_type), _bytes_of(element_type)
        require(
            before == after > 0,
            f"{cls.name} reads whole bytes, as many as there are: not {x.element_type} as {element_type}",
        )
        return super().infer(x, element_type)


class BinaryOp(PointwiseOp, ABC):
    """An op on the elements of `a` and `b`, which broadcast to the result by NumPy's rule."""

    ACCEPTS: ClassVar[Elements] = NUMBERS

    a = operand_def(TENSOR)
    b = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST))
    assembly_format = "$a `,` $b attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, a: Tensor, b: Tensor) -> Tensor:
        """The broadcast shape with the elements of the operands."""
        cls.ACCEPTS.check(a, cls.name)
        element = same_element((a, b), cls.name)
        return tensor_type(element, broadcast_shapes(a.get_shape(), b.get_shape()))


@irdl_op_definition
class AddOp(BinaryOp):
    """a + b."""

    name = "graph.add"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())
    formula = function("add", "a + b.")


@irdl_op_definition
class SubOp(BinaryOp):
    """a - b."""

    name = "graph.sub"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())
    formula = function("sub", "a - b.")


@irdl_op_definition
class MulOp(BinaryOp):
    """a * b."""

    name = "graph.mul"
    traits = traits_def(KeepsFinite(), HasQuantizedForm())
    formula = function("mul", "a * b.")


@irdl_op_definition
class PreluOp(BinaryOp):
    """a where a >= 0, else a * b: `b` is the slope, and broadcasts to the shape of `a`."""

    name = "graph.prelu"
    traits = traits_def(KeepsFinite())

    @classmethod
    def infer(cls, a: Tensor, b: Tensor) -> Tensor:
        """The type of `a`."""
        super().infer(a, b)
        require(
            may_broadcast_to(b.get_shape(), a.get_shape()),
            f"{cls.name}: the slope {b} does not broadcast to {a}",
        )
        return a

    def formula(self, a: Scalar[T], b: Scalar[T]) -> Scalar[T]:
        return (a >= 0).where(a, a * b)


class CompareOp(BinaryOp, ABC):
    """A comparison: the result has i1 elements."""

    traits = traits_def(KeepsFinite())

    @classmethod
    def infer(cls, a: Tensor, b: Tensor) -> Tensor:
        """The broadcast shape with i1 elements."""
        return tensor_type(i1, super().infer(a, b).get_shape())


EqualOp = _declared(CompareOp, "equal", "a == b.", accepts=ANY_ELEMENTS)
LessOp = _declared(CompareOp, "less", "a < b.")
GreaterOp = _declared(CompareOp, "greater", "a > b.")
DivOp = _declared(BinaryOp, "div", "a / b; integers truncate towards zero.")
MaxOp = _declared(BinaryOp, "max", "The larger of the two; NaN if one of them is.", KeepsFinite(), HasQuantizedForm())
MinOp = _declared(BinaryOp, "min", "The smaller of the two; NaN if one of them is.", KeepsFinite(), HasQuantizedForm())
ModOp = _declared(BinaryOp, "mod", "The remainder of a / b with the sign of a, exact: C's `fmod`.", accepts=FLOATS)
PowOp = _declared(BinaryOp, "pow", "a to the power of b.")
AndOp = _declared(BinaryOp, "and", "The logical and.", accepts=BOOLS)
OrOp = _declared(BinaryOp, "or", "The logical or.", accepts=BOOLS)
BitwiseAndOp = _declared(BinaryOp, "bitwise_and", "The bits that are set in both.", KeepsFinite(), accepts=INTEGERS)
BitwiseOrOp = _declared(BinaryOp, "bitwise_or", "The bits that are set in either.", KeepsFinite(), accepts=INTEGERS)
BitwiseXorOp = _declared(
    BinaryOp, "bitwise_xor", "The bits that are set in one of the two.", KeepsFinite(), accepts=INTEGERS
)
ShiftLeftOp = _declared(
    BinaryOp,
    "shift_left",
    "The bits of a, b positions up; 0 if all are shifted out, as a negative b, read without a sign, does.",
    accepts=INTEGERS,
)
ShiftRightOp = _declared(
    BinaryOp,
    "shift_right",
    "The bits of a, b positions down; what comes in is the sign, or 0 for integers without one.",
    KeepsFinite(),
    accepts=INTEGERS,
)


@irdl_op_definition
class WhereOp(PointwiseOp):
    """The element of `a` where `cond` is true, else that of `b`; all three broadcast."""

    name = "graph.where"

    cond = operand_def(TENSOR)
    a = operand_def(TENSOR)
    b = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST), KeepsFinite())
    formula = function("where", "The element of a where the condition is true, else that of b.")
    assembly_format = "$cond `,` $a `,` $b attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """The broadcast shape of all three with the elements of `a` and `b`."""
        BOOLS.check(cond, f"the condition of {cls.name}")
        element = same_element((a, b), cls.name)
        shape = broadcast_shapes(cond.get_shape(), a.get_shape(), b.get_shape())
        return tensor_type(element, shape)
