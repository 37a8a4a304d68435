# SPDX-License-Identifier: Apache-2.0
"""
Functions of f32 as polynomials, without branches: what a loop of them is vectorised as.

Each is reduced to an interval around 0, where a polynomial is as good as f32 tells, and what the reduction took away is
put back exactly: a power of two by its bits, a sign by its bit. A case that the formula does not cover is chosen at the
end, so that every element takes the same steps. Over all f32 each is within 2 units in the last place (ulp) of the
exact value, with the limits of IEEE 754 and the C library: infinities, NaN, denormal numbers and the sign of zero. The
largest errors are in docs/correctness.md. `benchmarks/polynomials.py` fits the coefficients, minimax polynomials whose
coefficients are f32, the most significant rounded first and the others fitted anew (Brisebarre, Muller and Tisserand,
"Computing machine-efficient polynomial approximations", ACM TOMS 2006), and measures the errors.

The reductions are those of Cody and Waite, "Software Manual for the Elementary Functions" (1980).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, nan

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, FloatAttr, LocationAttr, f32, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from penstock.passes.scalar_body import Body

EXP = (0.49999994, 0.16666521, 0.041668266, 0.008368677, 0.0013820734)
"""(e^r - 1 - r) / r^2 for r up to ln(2) / 2, lowest power first, as all of them."""
EXP2 = (0.6931472, 0.24022648, 0.0555036, 0.009618506, 0.0013390806, 0.00015326463)
"""(2^r - 1) / r for r up to 1 / 2."""
LOG = (
    *(0.3333333, -0.2500082, 0.20001242, -0.16623409),
    *(0.1420158, -0.1315961, 0.12762217, -0.07636439),
)
"""(log(1 + f) - f + f^2 / 2) / f^3 for f from sqrt(1/2) - 1 to sqrt(2) - 1."""
TANH = (-0.3333328, 0.13331406, -0.053736515, 0.020628167, -0.0056922967)
"""(tanh(a) / a - 1) / a^2 as a polynomial in a^2, for a up to `TANH_SMALL`."""
TANH_SMALL = 0.625
ERF = (0.12837917, -0.3761261, 0.11283364, -0.026843518, 0.005167731, -0.00078247394, 7.2360686e-05)
"""erf(a) / a - 1 as a polynomial in a^2, for a up to `ERF_SMALL`."""
ERFC_ROOT = (
    *(0.19556461, -0.23872963, 0.10000745, -0.0041632093, -0.009718514),
    *(0.0024093604, 0.0004105643, -0.00020917658, -1.4031452e-05),
)
"""The fourth root of 1 - erf(a) as a polynomial in a - `ERFC_CENTER`, for a from `ERF_SMALL` to `ERF_ONE`."""
ERF_SMALL, ERF_ONE, ERFC_CENTER = 1.1, 4.0, 2.25

LN2 = 0.6931471805599453
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.4286068203094172e-06
"""ln(2) in two parts; the first has 15 bits, so that its product with the exponent of any f32 is exact."""
ROUNDING = 12582912.0
"""1.5 * 2^23: added to a number below 2^22 it leaves the nearest integer in the last bits."""
SQRT_HALF_BITS = 0x3F3504F3
"""The bits of the f32 next to sqrt(1/2), where the significands of logarithms begin."""
FRACTION_BITS, BIAS = 23, 127
"""An f32 is 2^(field - `BIAS`) times its significand, and the field of its exponent is above the fraction."""


class PolynomialBody(Body):
    """
    Appends scalar ops on f32 and i32; `fused` says whether a * b + c is a `math.fma`, which rounds once.

    Without it, it is a product and a sum, of the same constants.
    """

    def __init__(self, block: Block, location: LocationAttr, *, fused: bool):
        super().__init__(block, location)
        self.fused = fused
        self._constants: dict[tuple[float, Attribute], SSAValue] = {}

    def constant(self, value: float, element: Attribute) -> SSAValue:
        """The number `value`, each once."""
        if (value, element) not in self._constants:
            self._constants[value, element] = super().constant(value, element)
        return self._constants[value, element]

    def real(self, value: float) -> SSAValue:
        """A number in f32."""
        return self.constant(value, f32)

    def multiply_add(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """a * b + c."""
        return self.emit(math.FmaOp(a, b, c)) if self.fused else self.add(self.mul(a, b), c)

    def polynomial(self, x: SSAValue, coefficients: Sequence[float]) -> SSAValue:
        """The value at x by Horner's rule."""
        *lower, value = map(self.real, coefficients)
        for coefficient in reversed(lower):
            value = self.multiply_add(value, x, coefficient)
        return value

    def at_most(self, x: SSAValue, limit: float) -> SSAValue:
        """The smaller of the two; a NaN stays."""
        return self.where(self.compare("gt", x, self.real(limit)), self.real(limit), x)

    def beyond(self, x: SSAValue, low: tuple[float, float], high: tuple[float, float], found: SSAValue) -> SSAValue:
        """
        What is found of x, but below the first limit and above the second one the number beside it; a NaN stays.

        It costs less than bounds on x, of which compilers make masks, and which what is computed would wait for.
        """
        found = self.where(self.compare("lt", x, self.real(low[0])), self.real(low[1]), found)
        return self.where(self.compare("gt", x, self.real(high[0])), self.real(high[1]), found)

    def bits(self, x: SSAValue) -> SSAValue:
        """The bits of an f32."""
        return self.emit(arith.BitcastOp(x, i32))

    def of_bits(self, bits: SSAValue) -> SSAValue:
        """The f32 that has these bits."""
        return self.emit(arith.BitcastOp(bits, f32))

    def shifted(self, bits: SSAValue, op: type[arith.ShLIOp | arith.ShRSIOp], by: int) -> SSAValue:
        """Bits shifted to the left, or to the right arithmetically."""
        return self.emit(op(bits, self.constant(by, i32)))

    def power_of_two(self, bits: SSAValue) -> SSAValue:
        """2^k, for k from -126 to 127, of an i32 whose last nine bits are k + `BIAS`."""
        return self.of_bits(self.shifted(bits, arith.ShLIOp, FRACTION_BITS))

    def nearest_integer(self, x: SSAValue, factor: float, added: int) -> tuple[SSAValue, SSAValue]:
        """The integer nearest to factor * x as a number, and an i32 that ends in its bits, `added` to it."""
        magic = self.real(ROUNDING + added)
        total = self.add(x, magic) if factor == 1 else self.multiply_add(x, self.real(factor), magic)
        return self.sub(total, magic), self.bits(total)

    def without_powers(self, x: SSAValue, added: int) -> tuple[SSAValue, SSAValue]:
        """r nearest to 0, with x = k * ln(2) + r, and an i32 that ends in the bits of k + `added`."""
        integer, bits = self.nearest_integer(x, 1 / LN2, added)
        rest = self.multiply_add(integer, self.real(-LN2_HIGH), x)
        return self.multiply_add(integer, self.real(-LN2_LOW), rest), bits

    def exp_of_rest(self, r: SSAValue) -> SSAValue:
        """e^r, for r up to ln(2) / 2."""
        return self.polynomial(r, (1, 1, *EXP))

    def scaled(self, x: SSAValue, bits: SSAValue) -> SSAValue:
        """
        x * 2^k, of an i32 that ends in the bits of k + 2 * `BIAS`, in two steps: only the last may round, to a denormal
        number, or overflow.
        """
        half = self.shifted(bits, arith.ShRSIOp, 1)
        return self.mul(self.mul(x, self.power_of_two(half)), self.power_of_two(self.sub(bits, half)))

    def log_of_parts(self, f: SSAValue, exponent: SSAValue) -> SSAValue:
        """log(1 + f) + exponent * ln(2), for f from sqrt(1/2) - 1 to sqrt(2) - 1."""
        square = self.mul(f, f)
        cubic = self.mul(self.mul(square, f), self.polynomial(f, LOG))
        rest = self.multiply_add(exponent, self.real(LN2_LOW), cubic)
        rest = self.multiply_add(square, self.real(-0.5), rest)
        return self.multiply_add(exponent, self.real(LN2_HIGH), self.add(f, rest))

    def parts(self, x: SSAValue) -> tuple[SSAValue, SSAValue]:
        """(m, k) with x = m * 2^k, m from sqrt(1/2) to sqrt(2), of a normal number; k is an i32."""
        first = self.constant(SQRT_HALF_BITS, i32)
        above = self.sub(self.bits(x), first)
        fraction = self.emit(arith.AndIOp(above, self.constant((1 << FRACTION_BITS) - 1, i32)))
        return self.of_bits(self.add(fraction, first)), self.shifted(above, arith.ShRSIOp, FRACTION_BITS)

    def log_limits(self, x: SSAValue, zero: float, logarithm: SSAValue) -> SSAValue:
        """The logarithm, minus infinity where x is `zero`, NaN below it, and x itself where it is NaN or infinite."""
        found = self.where(self.compare("lt", x, self.real(inf)), logarithm, x)
        found = self.where(self.compare("lt", x, self.real(zero)), self.real(nan), found)
        return self.where(self.compare("eq", x, self.real(zero)), self.real(-inf), found)

    def with_sign_of(self, size: SSAValue, x: SSAValue) -> SSAValue:
        """A number of this size and the sign of x."""
        return self.emit(math.CopySignOp(size, x))


def exp(body: PolynomialBody, x: SSAValue) -> SSAValue:
    """e^x = 2^k * e^r, which overflows before 89 and is 0 before -104."""
    rest, bits = body.without_powers(x, 2 * BIAS)
    return body.beyond(x, (-104, 0), (89, inf), body.scaled(body.exp_of_rest(rest), bits))


def exp2(body: PolynomialBody, x: SSAValue) -> SSAValue:
    """2^x = 2^k * 2^r."""
    integer, bits = body.nearest_integer(x, 1, 2 * BIAS)
    found = body.scaled(body.polynomial(body.sub(x, integer), (1, *EXP2)), bits)
    return body.beyond(x, (-151, 0), (129, inf), found)


def expm1(body: PolynomialBody, x: SSAValue) -> SSAValue:
    """e^x - 1 = (2^k - 1) + 2^k * (e^r - 1), by halves, as 2^128 is no f32; where it is x to the last bit, x."""
    rest, bits = body.without_powers(x, BIAS - 1)
    half = body.power_of_two(bits)
    linear = body.multiply_add(rest, half, body.sub(half, body.real(0.5)))
    remainder = body.mul(body.mul(rest, rest), body.polynomial(rest, EXP))
    halved = body.multiply_add(remainder, half, linear)
    found = body.beyond(x, (-18, -1), (89, inf), body.add(halved, halved))
    return body.where(body.compare("lt", body.abs(x), body.real(2**-25)), x, found)


def log(body: PolynomialBody, x: SSAValue) -> SSAValue:
    """log(m * 2^k) = log(m) + k * ln(2). A denormal number is made a normal one first."""
    is_denormal = body.compare("lt", x, body.real(2**-126))
    normal = body.where(is_denormal, body.mul(x, body.real(2**23)), x)
    significand, exponent = body.parts(normal)
    exponent = body.sub(exponent, body.where(is_denormal, body.constant(23, i32), body.constant(0, i32)))
    exponent = body.emit(arith.SIToFPOp(exponent, f32))
    found = body.log_of_parts(body.sub(significand, body.real(1)), exponent)
    return body.log_limits(x, 0, found)


def log1p(body: PolynomialBody, x: SSAValue) -> SSAValue:
    """
    log(1 + x), with k and m of 1 + x, but what 1 + x rounds away kept: m - 1 = x * 2^-k + (2^-k - 1).

    For large x nothing is lost, and 2^-k may be no f32.
    """
    significand, exponent = body.parts(body.add(x, body.real(1)))
    one = body.real(1)
    scale = body.power_of_two(body.sub(body.constant(BIAS, i32), exponent))
    exact = body.multiply_add(x, scale, body.sub(scale, one))
    f = body.where(body.compare("lt", x, body.real(2**26)), exact, body.sub(significand, one))
    found = body.log_of_parts(f, body.emit(arith.SIToFPOp(exponent, f32)))
    # The sum of the parts of -0 is +0.
    found = body.where(body.compare("eq", x, body.real(0)), x, found)
    return body.log_limits(x, -1, found)


def tanh(body: PolynomialBody, x: SSAValue) -> SSAValue:
    """An odd polynomial near 0, beyond it 1 - 2 / (e^2x + 1), which is 1 from 9.1 on."""
    size = body.at_most(body.abs(x), 9.1)
    square = body.mul(size, size)
    small = body.multiply_add(body.mul(size, square), body.polynomial(square, TANH), size)
    rest, bits = body.without_powers(body.add(size, size), BIAS)
    power = body.mul(body.exp_of_rest(rest), body.power_of_two(bits))
    one = body.real(1)
    large = body.sub(one, body.div(body.real(2), body.add(power, one)))
    is_small = body.compare("lt", size, body.real(TANH_SMALL))
    return body.with_sign_of(body.where(is_small, small, large), x)


def erf(body: PolynomialBody, x: SSAValue) -> SSAValue:
    """An odd polynomial near 0, beyond it 1 - p^4, which is 1 from 4 on."""
    size = body.at_most(body.abs(x), ERF_ONE)
    small = body.multiply_add(size, body.polynomial(body.mul(size, size), ERF), size)
    root = body.polynomial(body.sub(size, body.real(ERFC_CENTER)), ERFC_ROOT)
    root = body.mul(root, root)
    large = body.sub(body.real(1), body.mul(root, root))
    is_small = body.compare("lt", size, body.real(ERF_SMALL))
    return body.with_sign_of(body.where(is_small, small, large), x)


def root(body: PolynomialBody, x: SSAValue, quarters: int) -> SSAValue:
    """x to the power of 1/4, 1/2 or 3/4, by square roots; the powers of minus infinity and -0 are positive."""
    size = body.add(body.where(body.compare("eq", x, body.real(-inf)), body.real(inf), x), body.real(0))
    found = half = body.emit(math.SqrtOp(size))
    if quarters != 2:
        found = body.emit(math.SqrtOp(half))
    if quarters == 3:
        # One rounding less than the product of the two; 0 and infinity, like 1, are roots of themselves.
        found = body.where(body.compare("eq", found, size), size, body.div(size, found))
    return found


FUNCTIONS: Mapping[type[Operation], Callable[[PolynomialBody, SSAValue], SSAValue]] = {
    math.ErfOp: erf,
    math.ExpOp: exp,
    math.Exp2Op: exp2,
    math.ExpM1Op: expm1,
    math.LogOp: log,
    math.Log1pOp: log1p,
    math.TanhOp: tanh,
}
"""The ops that have a polynomial, and what appends it to a body."""


def polynomial_of(op: Operation) -> Callable[[PolynomialBody, SSAValue], SSAValue] | None:
    """What appends the function of its first operand that an op on scalars of up to 32 bits is; None for others."""
    if not op.results or not isinstance(op.results[0].type, Float16Type | BFloat16Type | Float32Type):
        return None
    if not isinstance(op, math.PowFOp):
        return FUNCTIONS.get(type(op))
    power = op.rhs.owner.value if isinstance(op.rhs.owner, arith.ConstantOp) else None
    quarters = 4 * power.value.data if isinstance(power, FloatAttr) else 0
    return partial(root, quarters=int(quarters)) if quarters in (1, 2, 3) else None
