"""
The floats of 8 bits or fewer in C: a byte in memory, `float` in expressions.

Formats are those of "OCP 8-bit Floating Point Specification" and "OCP Microscaling Formats Specification", and the
variants `FNUZ`, which have no negative zero; what a number rounds to is what ml_dtypes makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass

_TEMPLATE = """\
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
class _Format:
    """A format with a sign; codes are bits without it."""

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
        return _TEMPLATE.format(
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


_FORMATS = {
    "f8E4M3FN": _Format(3, 7, 0x7E, "sign | 0x7f", "sign | 0x7f", "code == 0x7f"),
    "f8E5M2": _Format(2, 15, 0x7B, "sign | 0x7c", "sign | 0x7e", "code > 0x7c", "code == 0x7c"),
    "f8E4M3FNUZ": _Format(3, 8, 0x7F, "0x80", "0x80", "bits == 0x80", has_negative_zero=False),
    "f8E5M2FNUZ": _Format(2, 16, 0x7F, "0x80", "0x80", "bits == 0x80", has_negative_zero=False),
    "f4E2M1FN": _Format(1, 1, 0x7, "sign | 0x7", "sign ^ 0x8", sign=0x8),
}

BYTE_FLOATS: dict[str, str] = {
    **{f"bits_{name}": format.text(name) for name, format in _FORMATS.items()},
    "bits_f8E8M0FNU": _EXPONENT_ONLY,
}
"""The helpers that load, store and round each type, as the prelude calls them."""
