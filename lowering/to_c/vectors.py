"""
Vectors of GCC and Clang in generated C: what a tile of the registers is kept in, so that no compiler has to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.machine import TargetOp
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.types import CType, attribute_number
from penstock.lowering.to_c.literals import literal

VECTOR = "vector_"
"""What the keys of the helpers of vectors begin with."""

SHORTEST = 16
"""Bytes of the shortest vectors of processors."""

_INFIX: dict[type[Operation], str] = {arith.AddfOp: "+", arith.SubfOp: "-", arith.MulfOp: "*"}
_CALLS: dict[type[Operation], str] = {math.FmaOp: "fma", arith.MaximumfOp: "maximum", arith.MinimumfOp: "minimum"}


@dataclass(frozen=True)
class VectorType:
    """So many elements of a type side by side."""

    element: CType
    lanes: int

    @property
    def helper(self) -> str:
        """The key of its helpers in the prelude."""
        return f"{VECTOR}{self.element.name}x{self.lanes}"

    @property
    def name(self) -> str:
        return f"pen_{self.element.name}x{self.lanes}"

    def at(self, lvalue: str) -> str:
        """The vector that begins at an element in memory."""
        return f"*({self.name} *)&{lvalue}"

    def load(self, lvalue: str) -> str:
        """The same, only read."""
        return f"*(const {self.name} *)&{lvalue}"

    def every_second(self, lvalue: str) -> str:
        """Every second element, from one in memory to the last of them and not beyond."""
        return f"pen_every_second_{self.element.name}x{self.lanes}(&{lvalue})"

    def splat(self, scalar: Expr) -> str:
        """A number in every lane."""
        return f"pen_splat_{self.element.name}x{self.lanes}({scalar.text})"

    def results(self, body: Block, values: Mapping[SSAValue, Expr], outside: Callable[[SSAValue], Expr]) -> list[Expr]:
        """What a body yields, given its arguments as vectors and what is `outside` as scalars."""
        known = dict(values)

        def value(operand: SSAValue) -> Expr:
            return known[operand] if operand in known else Expr(self.splat(outside(operand)), is_atom=True)

        for op in body.ops:
            if isinstance(op, arith.ConstantOp):
                number = attribute_number(op.value)
                assert number is not None
                known[op.result] = Expr(self.splat(literal(self.element, number)), is_atom=True)
            elif (called := _CALLS.get(type(op))) is not None:
                texts = ", ".join(value(operand).text for operand in op.operands)
                known[op.results[0]] = Expr(f"pen_{called}_{self.element.name}x{self.lanes}({texts})", is_atom=True)
            elif not isinstance(op, YieldOp):
                left, right = (value(operand).atom for operand in op.operands)
                known[op.results[0]] = Expr(f"{left} {_INFIX[type(op)]} {right}")
        terminator = body.last_op
        assert terminator is not None
        return [value(operand) for operand in terminator.operands]


def vector_type(target: TargetOp | None, element: CType, count: int | None = None) -> VectorType | None:
    """The vectors of a machine of elements of a type, or a shorter one that `count` elements are; None without such."""
    processor = None if target is None else target.processor()
    if processor is None or processor.vector is None or element.name not in ("f32", "f64"):
        return None
    lanes = processor.vector_bytes // element.size
    is_short = count is not None and count < lanes and count * element.size >= SHORTEST and count.bit_count() == 1
    lanes = count if is_short and count is not None else lanes
    return VectorType(element, lanes) if lanes > 1 else None


def is_vectorizable(body: Block, element: CType) -> bool:
    """Whether a body computes on nothing but elements of one type, in which vectors do what scalars do."""
    known = (arith.ConstantOp, YieldOp, *_CALLS, *_INFIX)
    values = [*body.args, *(result for op in body.ops for result in op.results)]
    return all(isinstance(op, known) for op in body.ops) and all(str(each.type) == element.name for each in values)


_X86 = {
    16: ("defined(__FMA__)", "defined(__AVX__)", ""),
    32: ("defined(__FMA__)", "defined(__AVX__)", "256"),
    # Of these Clang has another name, and it makes the instruction of the comparison.
    64: ("defined(__AVX512F__)", "defined(__AVX512F__) && !defined(__clang__)", "512"),
}
"""
By the bytes of a vector: where there are the fused multiply-add, and the maximum and the minimum, which give `b` where
neither is larger, as the comparison does; and what their names say of the width.
"""

_HELPERS = """\
#if !defined(PENSTOCK_SHUFFLES) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define PENSTOCK_SHUFFLES
#endif
#endif
#ifndef __GNUC__
#error "the sums of tiles are vectors of GCC and Clang: compile for the machine \\"host\\" instead"
#endif
typedef {T} pen_{N} __attribute__((vector_size({BYTES}), aligned({SIZE}), may_alias));
typedef {T} pen_part_{N} __attribute__((vector_size({PART}), aligned({SIZE}), may_alias));
static inline pen_{N} pen_splat_{N}({T} a) {{ return (pen_{N}){{{COPIES}}}; }}
/* Every second element, up to the last one and not beyond: of two loads in each 16 bytes, the even and the odd ones. */
static inline pen_{N} pen_every_second_{N}(const {T} *a) {{
#if defined(PENSTOCK_SHUFFLES)
  const pen_{N} even = {EVEN}, odd = {ODD};
  return __builtin_shufflevector(even, odd, {CHOSEN});
#else
  return (pen_{N}){{{ELEMENTS}}};
#endif
}}
typedef {INTEGER} pen_bits_{N} __attribute__((vector_size({BYTES}), aligned({SIZE}), may_alias));
/* NaN if one is NaN; -0 is below +0. Of equal numbers the bits are the same, but for the sign of zeros. */
static inline pen_{N} pen_maximum_{N}(pen_{N} a, pen_{N} b) {{
#if {HAS_EXTREMA}
  const pen_bits_{N} larger = (pen_bits_{N}){LARGEST};
#else
  const pen_bits_{N} larger = ((pen_bits_{N})a & (a > b)) | ((pen_bits_{N})b & ~(a > b));
#endif
  const pen_bits_{N} x = (pen_bits_{N})a, equal = a == b;
  return (pen_{N})((larger & ~(~x & equal)) | (a != a));
}}
static inline pen_{N} pen_minimum_{N}(pen_{N} a, pen_{N} b) {{
#if {HAS_EXTREMA}
  const pen_bits_{N} smaller = (pen_bits_{N}){SMALLEST};
#else
  const pen_bits_{N} smaller = ((pen_bits_{N})a & (a < b)) | ((pen_bits_{N})b & ~(a < b));
#endif
  const pen_bits_{N} x = (pen_bits_{N})a, equal = a == b;
  return (pen_{N})(smaller | (x & equal) | (a != a));
}}
static inline pen_{N} pen_fma_{N}(pen_{N} a, pen_{N} b, pen_{N} c) {{
#if {HAS_FMA}
  return {FMA};
#elif defined(__clang__)
  return __builtin_elementwise_fma(a, b, c);
#else
  pen_{N} d;
  for (int i = 0; i < {LANES}; ++i) d[i] = fma{F}(a[i], b[i], c[i]);
  return d;
#endif
}}
"""


def vector_helpers(key: str) -> str:
    """The definitions for vectors of one type; the compilers have names of their own for the fused multiply-add."""
    element, lanes = key.removeprefix(VECTOR).split("x")
    count, size = int(lanes), 8 if element == "f64" else 4
    quarter = min(count, 16 // size)
    suffix, width = "pd" if element == "f64" else "ps", count * size
    has_fma, has_extrema, wide = _X86.get(width, ("0", "0", ""))
    # Those of 512 bits take a mask, and how to round, which is as ever.
    wide, last = (f"{wide}_mask", ", -1, 4") if width == 64 else (wide, "")
    extremum = f"__builtin_ia32_{{}}{suffix}{wide}(a, b{', b' if last else ''}{last})"
    chosen = [
        first + place
        for first in range(0, count, quarter)
        for place in [*range(0, quarter, 2), *range(count + (quarter > 1), count + quarter, 2)]
    ]

    def loaded(more: int) -> str:
        """The first of every two parts in memory, or what is `more` after it, side by side."""
        parts = [f"*(const pen_part_{element}x{count} *)(a + {2 * at + more})" for at in range(0, count, quarter)]
        while len(parts) > 1:
            places = ", ".join(map(str, range(2 * count // len(parts))))
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [f"__builtin_shufflevector({left}, {right}, {places})" for left, right in pairs]
        return parts[0]

    return _HELPERS.format(
        T="double" if element == "f64" else "float",
        N=f"{element}x{count}",
        BYTES=width,
        SIZE=size,
        LANES=count,
        COPIES=", ".join(["a"] * count),
        PART=quarter * size,
        EVEN=loaded(0),
        ODD=loaded(quarter - 1),
        INTEGER="int64_t" if element == "f64" else "int32_t",
        LARGEST=extremum.format("max"),
        SMALLEST=extremum.format("min"),
        HAS_EXTREMA=has_extrema,
        CHOSEN=", ".join(map(str, chosen)),
        ELEMENTS=", ".join(f"a[{2 * lane}]" for lane in range(count)),
        F="" if element == "f64" else "f",
        HAS_FMA=has_fma,
        FMA=f"__builtin_ia32_vfmadd{suffix}{wide}(a, b, c{last})",
    )
