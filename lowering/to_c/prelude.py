# SPDX-License-Identifier: Apache-2.0
"""
The few helper functions that generated C may call. A program gets those that it uses, as `static inline`.

A helper is asked for as `minimum_f32`: what it does, and the type it does it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.lowering.to_c.transposes import TRANSPOSE, transpose_helper
from penstock.lowering.to_c.vectors import VECTOR, product_helper, vector_helpers
from penstock.passes.analysis.vector_products import VectorProduct

_WIDTHS = (128, 256, 512)
"""The bits of vectors that GCC can be told to prefer."""
_PREFERRED = """\
/* The vectors that loops are made of: those of the machine, for a compiler that takes narrower ones by itself. */
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width={bits}")
#endif

"""
_HEADER = """\
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * INDEPENDENT: iterations of the loop that follows do not depend on each other. UNROLL: it is short; unroll it.
 * PREFETCH: what is there is read soon.
 */
#if defined(__GNUC__)
#define PENSTOCK_PREFETCH(ADDRESS) __builtin_prefetch(ADDRESS)
#else
#define PENSTOCK_PREFETCH(ADDRESS) (void)(ADDRESS)
#endif
#if defined(__clang__)
#define PENSTOCK_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define PENSTOCK_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define PENSTOCK_INDEPENDENT _Pragma("GCC ivdep")
#define PENSTOCK_UNROLL _Pragma("GCC unroll 32")
#else
#define PENSTOCK_INDEPENDENT
#define PENSTOCK_UNROLL
#endif
"""


def header(bits: int) -> str:
    """Return the text that every program for a machine with vectors of so many bits begins with."""
    return (_PREFERRED.format(bits=bits) if bits in _WIDTHS else "") + _HEADER


def _binary(what: str, expression: str, *, result: str = "{T}") -> str:
    """A helper that returns an expression of two numbers."""
    return f"static inline {result} pen_{what}_{{N}}({{T}} a, {{T}} b) {{{{ return {expression}; }}}}\n"


def _division(what: str, *lines: str) -> str:
    """A division, which notes a divisor of zero instead of trapping."""
    body = "".join(f"  {line}\n" for line in ("if (b == 0) *fault = 1;", *lines))
    return f"static inline {{T}} pen_{what}_{{N}}({{T}} a, {{T}} b, int32_t *fault) {{{{\n{body}}}}}\n"


# The floats of 8 bits or fewer: a byte in memory, `float` in expressions. Formats are those of "OCP 8-bit Floating
# Point Specification" and "OCP Microscaling Formats Specification", and the variants `FNUZ`, which have no negative
# zero; what a number rounds to is what ml_dtypes makes of it.

_BYTE_FLOAT = """\
static inline float pen_load_{N}(uint8_t bits) {{
  const int code = bits & {LOW}, whole = code >> {M}, fraction = code & {FRACTION};
  if ({IS_NAN}) return NAN;
  const float size = whole ? ldexpf({ONE} + fraction, whole - {SHIFT}) : ldexpf(fraction, 1 - {SHIFT});
  return bits & {SIGN} ? -({IS_INFINITE} ? INFINITY : size) : {IS_INFINITE} ? INFINITY : size;
}}
static inline uint8_t pen_store_{N}(float value) {{
  const int sign = signbit(value) ? {SIGN} : 0;
  if (value != value) return (uint8_t)({NAN_CODE});
  const float size = fabsf(value);
  if (size >= 0x1p17f) return (uint8_t)({OVERFLOW});
  // The last bit of a number of this size stands for 2^(exponent - {M}).
  const int exponent = size >= 0x1p{LEAST}f ? ilogbf(size) : {LEAST};
  const int code = ((exponent - {LEAST}) << {M}) + (int)rintf(ldexpf(size, {M} - exponent));
  return (uint8_t)(code > {LARGEST} ? {OVERFLOW} : {SIGNED_CODE});
}}
static inline float pen_round_{N}(float value) {{ return pen_load_{N}(pen_store_{N}(value)); }}
"""

_EXPONENT_ONLY = """\
static inline float pen_load_f8E8M0FNU(uint8_t bits) { return bits == 0xff ? NAN : ldexpf(1.0f, bits - 127); }
static inline uint8_t pen_store_f8E8M0FNU(float value) {
  if (!(value > 0) || isinf(value)) return 0xff;
  const int exponent = ilogbf(value);
  if (exponent < -126) return value > 0x1p-127f;
  return (uint8_t)(exponent + 127 + (ldexpf(value, -exponent) >= 1.5f));
}
static inline float pen_round_f8E8M0FNU(float value) { return pen_load_f8E8M0FNU(pen_store_f8E8M0FNU(value)); }
"""


@dataclass(frozen=True)
class _ByteFloat:
    """A float of 8 bits or fewer with a sign; codes are bits without it."""

    fraction: int
    """Bits of the fraction."""
    bias: int
    largest: int
    """The code of the largest number."""
    overflow: str
    """What is stored for numbers beyond it, from `sign`."""
    nan: str
    """What is stored for NaN, from `sign`."""
    is_nan: str = "0"
    """The test for NaN, on `bits` or `code`."""
    is_infinite: str = "0"
    has_negative_zero: bool = True
    sign: int = 0x80

    def text(self, name: str) -> str:
        return _BYTE_FLOAT.format(
            N=name,
            M=self.fraction,
            LOW=self.sign - 1,
            FRACTION=(1 << self.fraction) - 1,
            ONE=1 << self.fraction,
            SHIFT=self.bias + self.fraction,
            LEAST=1 - self.bias,
            LARGEST=self.largest,
            SIGN=self.sign,
            IS_NAN=self.is_nan,
            IS_INFINITE=self.is_infinite,
            NAN_CODE=self.nan,
            OVERFLOW=self.overflow,
            SIGNED_CODE="sign | code" if self.has_negative_zero else "code ? sign | code : 0",
        )


_BYTE_FLOATS = {
    "f8E4M3FN": _ByteFloat(3, 7, 0x7E, "sign | 0x7f", "sign | 0x7f", "code == 0x7f"),
    "f8E5M2": _ByteFloat(2, 15, 0x7B, "sign | 0x7c", "sign | 0x7e", "code > 0x7c", "code == 0x7c"),
    "f8E4M3FNUZ": _ByteFloat(3, 8, 0x7F, "0x80", "0x80", "bits == 0x80", has_negative_zero=False),
    "f8E5M2FNUZ": _ByteFloat(2, 16, 0x7F, "0x80", "0x80", "bits == 0x80", has_negative_zero=False),
    "f4E2M1FN": _ByteFloat(1, 1, 0x7, "sign | 0x7", "sign ^ 0x8", sign=0x8),
}


_TEMPLATES: dict[str, str] = {
    # 16-bit floats: memory to float and back, to nearest even.
    "bits_f16": """\
static inline float pen_load_f16(uint16_t bits) {
  // On integers, without a branch: compilers make vectors of it, but not of _Float16.
  uint32_t whole = (uint32_t)(bits & 0x7fffu) << 13;
  float value;
  memcpy(&value, &whole, 4);
  value *= 0x1p112f;
  memcpy(&whole, &value, 4);
  whole |= (value >= 0x1p16f ? 0x7f800000u : 0u) | (uint32_t)(bits & 0x8000u) << 16;
  memcpy(&value, &whole, 4);
  return value;
}
static inline uint16_t pen_store_f16(float value) {
  uint32_t whole, small;
  memcpy(&whole, &value, 4);
  const uint32_t sign = (whole >> 16) & 0x8000u;
  whole &= 0x7fffffffu;
  memcpy(&value, &whole, 4);
  value += 0.5f;  // whose last bit is the last one of a subnormal f16
  memcpy(&small, &value, 4);
  const uint32_t normal = (whole - 0x38000000u + 0xfffu + ((whole >> 13) & 1u)) >> 13;
  uint32_t half = whole < 0x38800000u ? small - 0x3f000000u : normal;
  half = whole >= 0x477ff000u ? 0x7c00u : half;
  half = whole > 0x7f800000u ? 0x7e00u | ((whole >> 13) & 0x3ffu) : half;
  return (uint16_t)(sign | half);
}
static inline float pen_round_f16(float value) { return pen_load_f16(pen_store_f16(value)); }
""",
    "bits_bf16": """\
static inline float pen_load_bf16(uint16_t bits) {
  const uint32_t whole = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &whole, 4);
  return value;
}
static inline uint16_t pen_store_bf16(float value) {
  uint32_t whole;
  memcpy(&whole, &value, 4);
  if ((whole & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((whole >> 16) | 0x40u);
  return (uint16_t)((whole + 0x7fffu + ((whole >> 16) & 1u)) >> 16);
}
static inline float pen_round_bf16(float value) { return pen_load_bf16(pen_store_bf16(value)); }
""",
    **{f"bits_{name}": each.text(name) for name, each in _BYTE_FLOATS.items()},
    "bits_f8E8M0FNU": _EXPONENT_ONLY,
    # A double as a float that rounds to a 16-bit float as the double would: to odd if it is not exact.
    "odd_f16": """\
static inline float pen_odd_f16(double value) {
  float narrow = (float)value;
  uint32_t bits;
  memcpy(&bits, &narrow, 4);
  if ((double)narrow != value && isfinite(narrow) && !(bits & 1u)) bits += fabs(narrow) < fabs(value) ? 1u : -1u;
  memcpy(&narrow, &bits, 4);
  return narrow;
}
""",
    # The larger and the smaller number. NaN if one is NaN; -0 is below +0.
    "maximum": """\
static inline {T} pen_maximum_{N}({T} a, {T} b) {{
  return (a > b) | (a != a) | ((a == b) & !signbit(a)) ? a : b;
}}
""",
    "minimum": """\
static inline {T} pen_minimum_{N}({T} a, {T} b) {{
  return (a < b) | (a != a) | ((a == b) & !!signbit(a)) ? a : b;
}}
""",
    # The same where `b` is a constant, no NaN, that decides between two zeros.
    "max": _binary("max", "b >= a ? b : a"),
    "min": _binary("min", "b <= a ? b : a"),
    # The larger and the smaller number; a number if one is NaN.
    "maxnum": _binary("maxnum", "(a >= b) | (b != b) ? a : b"),
    "minnum": _binary("minnum", "(a <= b) | (b != b) ? a : b"),
    "one": _binary("one", "(a < b) | (a > b)", result="int"),
    "ordered": _binary("ordered", "(a == a) & (b == b)", result="int"),
    "power_integer": """\
static inline {T} pen_power_integer_{N}({T} a, {T} b) {{
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
  {U} result = 1, base = ({U})a;
  for ({U} left = ({U})b; left; left >>= 1) {{
    if (left & 1) result = ({U})((uint64_t)result * base);
    base = ({U})((uint64_t)base * base);
  }}
  return ({T})result;
}}
""",
    "mins": _binary("mins", "a < b ? a : b"),
    "maxs": _binary("maxs", "a > b ? a : b"),
    "minu": _binary("minu", "({U})a < ({U})b ? a : b"),
    "maxu": _binary("maxu", "({U})a > ({U})b ? a : b"),
    "divs": _division("divs", "return b == 0 ? 0 : b == -1 ? ({T})(0 - ({U})a) : ({T})(a / b);"),
    "rems": _division("rems", "return b == 0 || b == -1 ? 0 : ({T})(a % b);"),
    "divu": _division("divu", "return b == 0 ? 0 : ({T})(({U})a / ({U})b);"),
    "remu": _division("remu", "return b == 0 ? 0 : ({T})(({U})a % ({U})b);"),
    "floordivs": _division(
        "floordivs",
        "if (b == 0 || b == -1) return b == 0 ? 0 : ({T})(0 - ({U})a);",
        "return ({T})(a / b - (a % b != 0 && (a < 0) != (b < 0)));",
    ),
    "ceildivs": _division(
        "ceildivs",
        "if (b == 0 || b == -1) return b == 0 ? 0 : ({T})(0 - ({U})a);",
        "return ({T})(a / b + (a % b != 0 && (a < 0) == (b < 0)));",
    ),
    "ceildivu": _division("ceildivu", "return b == 0 ? 0 : ({T})(({U})a / ({U})b + (({U})a % ({U})b != 0));"),
    # An index that was read from memory, which must be below `size`.
    "inside": """\
static inline {T} pen_inside_{N}({T} a, {T} size, int32_t *fault) {{
  if (a >= 0 && a < size) return a;
  *fault = 2;
  return 0;
}}
""",
    # Shifts; all bits may be shifted out.
    "shl": _binary("shl", "({U})b < {B} ? ({T})(({U})a << b) : 0"),
    "shrs": _binary("shrs", "({T})(a >> (({U})b < {B} ? b : {B} - 1))"),
    "shru": _binary("shru", "({U})b < {B} ? ({T})(({U})a >> b) : 0"),
    "ones": """\
static inline {T} pen_ones_{N}({T} a) {{
  {T} count = 0;
  for ({U} left = ({U})a; left; left &= ({U})(left - 1)) ++count;
  return count;
}}
""",
    "leading_zeros": """\
static inline {T} pen_leading_zeros_{N}({T} a) {{
  {T} count = {B};
  for ({U} left = ({U})a; left; left >>= 1) --count;
  return count;
}}
""",
    "trailing_zeros": """\
static inline {T} pen_trailing_zeros_{N}({T} a) {{
  {T} count = 0;
  for ({U} left = ({U})a; count < {B} && !(left & 1); left >>= 1) ++count;
  return count;
}}
""",
    # Reading the bits of one type as another.
    "bitcast": """\
static inline {T} pen_bitcast_{N}({F} a) {{
  {T} b;
  memcpy(&b, &a, sizeof b);
  return b;
}}
""",
}

_ROUND_TYPES = {"f32": ("float", "uint32_t", 32, "int32_t"), "f64": ("double", "uint64_t", 64, "int64_t")}
_INT_TYPES = {
    f"i{bits}": (f"int{bits}_t", f"uint{bits}_t", bits, {32: "float", 64: "double"}.get(bits, f"int{bits}_t"))
    for bits in (8, 16, 32, 64)
}
_TYPES = {**_ROUND_TYPES, **_INT_TYPES}


def helper_name(what: str, type_name: str) -> str:
    """The key of a helper on a type; index counts as i64."""
    return f"{what}_{'i64' if type_name == 'index' else type_name}"


def prelude(helpers: Iterable[str], products: Mapping[str, VectorProduct]) -> str:
    """The definitions of the helpers asked for, in the order of this file, and of intrinsics of the host."""
    wanted = set(helpers)
    parts: list[str] = []
    for what, template in _TEMPLATES.items():
        if what in wanted:
            parts.append(template)
            continue
        for type_name, (value, unsigned, bits, other) in _TYPES.items():
            if f"{what}_{type_name}" in wanted:
                parts.append(template.format(T=value, N=type_name, U=unsigned, B=bits, F=other))
    parts += [vector_helpers(key) for key in sorted(wanted) if key.startswith(VECTOR)]
    parts += [transpose_helper(key) for key in sorted(wanted) if key.startswith(TRANSPOSE)]
    parts += [product_helper(products[name]) for name in sorted(products)]
    return "\n".join(parts)
