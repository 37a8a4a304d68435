# SPDX-License-Identifier: Apache-2.0
"""
Vectors of GCC and Clang in generated C: what a tile of the registers is kept in, so that no compiler has to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.cpu import FEATURES
from penstock.dialects.graph.base import is_unsigned
from penstock.dialects.machine import TargetOp
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.types import I32, CType, attribute_number, c_type
from penstock.lowering.to_c.literals import literal
from penstock.passes.analysis.vector_products import VectorProduct

VECTOR = "vector_"
"""What the keys of the helpers of vectors begin with."""

SHORTEST = 16
"""Bytes of the shortest vectors of processors."""

_INFIX: dict[type[Operation], str] = {
    arith.AddfOp: "+",
    arith.SubfOp: "-",
    arith.MulfOp: "*",
    arith.DivfOp: "/",
    arith.AddiOp: "+",
    arith.SubiOp: "-",
    arith.MuliOp: "*",
}
_CALLS: dict[type[Operation], str] = {
    math.FmaOp: "fma",
    math.RoundEvenOp: "round_even",
    arith.MaximumfOp: "maximum",
    arith.MinimumfOp: "minimum",
}
_CONVERSIONS = (
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
    arith.FPToSIOp,
    arith.FPToUIOp,
)
_ELEMENTS = ("f32", "f64", "i8", "i16", "i32", "i64")


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

    @property
    def unsigned(self) -> str:
        """The name of vectors of as many integers without a sign."""
        return f"pen_u{self.element.bits}x{self.lanes}"

    def of(self, element: CType) -> VectorType:
        """As many elements of another type."""
        return VectorType(element, self.lanes)

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

    def used_in(self, body: Block) -> set[VectorType]:
        """The vectors that a body computes with."""
        values = [*body.args, *(result for op in body.ops for result in op.results)]
        assert body.last_op is not None
        return {self.of(I32), *(self.of(c_type(value.type, body.last_op)) for value in values)}

    def results(self, body: Block, values: Mapping[SSAValue, Expr], outside: Callable[[SSAValue], Expr]) -> list[Expr]:
        """What a body yields, given its arguments as vectors and what is `outside` as scalars."""
        known = dict(values)

        terminator = body.last_op
        assert terminator is not None

        def type_of(operand: SSAValue) -> VectorType:
            return self.of(c_type(operand.type, terminator))

        def value(operand: SSAValue) -> Expr:
            return known[operand] if operand in known else Expr(type_of(operand).splat(outside(operand)), is_atom=True)

        for op in body.ops:
            if isinstance(op, YieldOp):
                continue
            vector = type_of(op.results[0])
            if isinstance(op, arith.ConstantOp):
                number = attribute_number(op.value)
                assert number is not None
                found = Expr(vector.splat(literal(vector.element, number)), is_atom=True)
            elif (least := _bounded(op, vector)) is not None:
                bounded, builtin = least
                bound = next(operand for operand in op.operands if operand is not bounded)
                found = Expr(f"{builtin}({value(bound).text}, {value(bounded).text})", is_atom=True)
            elif (called := _CALLS.get(type(op))) is not None:
                texts = ", ".join(value(operand).text for operand in op.operands)
                found = Expr(f"pen_{called}_{vector.element.name}x{vector.lanes}({texts})", is_atom=True)
            elif isinstance(op, _CONVERSIONS):
                source = type_of(op.operands[0])
                found = Expr(_converted(op, value(op.operands[0]).atom, source, vector), is_atom=True)
            else:
                left, right = (value(operand).atom for operand in op.operands)
                found = Expr(f"{left} {_INFIX[type(op)]} {right}")
                if not vector.element.is_float:
                    # Sums and products of integers wrap.
                    unsigned = vector.unsigned
                    text = f"({vector.name})(({unsigned}){left} {_INFIX[type(op)]} ({unsigned}){right})"
                    found = Expr(f"({text})", is_atom=True)
            known[op.results[0]] = found
        return [value(operand) for operand in terminator.operands]


def _converted(op: Operation, text: str, source: VectorType, target: VectorType) -> str:
    """The vector of an op that converts the elements of another one."""
    if not source.element.is_float:
        is_unsigned = isinstance(op, arith.ExtUIOp | arith.UIToFPOp)
        text = f"pen_{'unsigned' if is_unsigned else 'held'}_{source.element.name}x{source.lanes}({text})"
    if isinstance(op, arith.ExtUIOp):
        return f"(({target.name})__builtin_convertvector({text}, {target.unsigned}))"
    if isinstance(op, arith.FPToSIOp | arith.FPToUIOp) and target.element.bits < I32.bits:
        text = f"__builtin_convertvector({text}, {target.of(I32).name})"
    return f"__builtin_convertvector({text}, {target.name})"


def _number(value: SSAValue) -> float | None:
    """The constant that a value is."""
    number = attribute_number(value.owner.value) if isinstance(value.owner, arith.ConstantOp) else None
    return None if number is None else float(number)


def _bounded(op: Operation, vector: VectorType) -> tuple[SSAValue, str] | None:
    """
    For a maximum or minimum with a constant what it bounds, and the helper that takes the constant before it: of
    equal numbers and for NaN it gives the second, which differs from the op in the sign of zeros alone.
    """
    if not isinstance(op, arith.MaximumfOp | arith.MinimumfOp):
        return None
    for value, bound in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        number = _number(bound)
        becomes_integer = all(isinstance(use.operation, arith.FPToSIOp | arith.FPToUIOp) for use in op.result.uses)
        if number is not None and number == number and (number or becomes_integer) and _number(value) is None:
            what = "least" if isinstance(op, arith.MinimumfOp) else "most"
            return value, f"pen_{what}_{vector.element.name}x{vector.lanes}"
    return None


def _fits_word(value: SSAValue) -> bool:
    """Whether a float is bounded by constants to what 32 bits hold, or NaN."""
    found: dict[type[Operation], float] = {}
    while isinstance(op := value.owner, arith.MaximumfOp | arith.MinimumfOp):
        number = _number(op.rhs)
        if number is None:
            return False
        found.setdefault(type(op), number)
        value = op.lhs
    return len(found) == 2 and all(abs(number) < float(1 << 31) for number in found.values())


def vector_type(target: TargetOp | None, element: CType, count: int | None = None) -> VectorType | None:
    """The vectors of a machine of elements of a type, or shorter ones that `count` elements are; None without such."""
    processor = None if target is None else target.processor()
    if processor is None or processor.vector is None or element.name not in ("f32", "f64", "i32"):
        return None
    lanes = processor.vector_bytes // element.size
    if count is not None and (dividing := count & -count) * element.size >= SHORTEST:
        lanes = min(lanes, dividing)
    return VectorType(element, lanes) if lanes > 1 else None


def is_vectorizable(body: Block) -> bool:
    """Whether vectors do what scalars do for all that a body computes."""
    known = (arith.ConstantOp, YieldOp, *_CALLS, *_INFIX, *_CONVERSIONS)
    values = [*body.args, *(result for op in body.ops for result in op.results)]
    converted = [op.operands[0] for op in body.ops if isinstance(op, arith.FPToSIOp | arith.FPToUIOp)]
    return (
        all(isinstance(op, known) for op in body.ops)
        and all(str(each.type) in _ELEMENTS for each in values)
        and all(_fits_word(value) for value in converted)
    )


_INTEGER_HELPERS = """\
typedef int{B}_t pen_{N} __attribute__((vector_size({BYTES}), aligned({SIZE}), may_alias));
typedef uint{B}_t pen_u{B}x{LANES} __attribute__((vector_size({BYTES}), aligned({SIZE}), may_alias));
static inline pen_{N} pen_splat_{N}(int{B}_t a) {{ return (pen_{N}){{{COPIES}}}; }}
/* GCC 12 converts what it loads element by element, unless it is in a register of the same type. */
static inline pen_{N} pen_held_{N}(pen_{N} a) {{
#if {IN_REGISTER} && defined(__GNUC__) && !defined(__clang__)
  __asm__("" : "+x"(a));
#endif
  return a;
}}
static inline pen_u{B}x{LANES} pen_unsigned_{N}(pen_{N} a) {{
  pen_u{B}x{LANES} b = (pen_u{B}x{LANES})a;
#if {IN_REGISTER} && defined(__GNUC__) && !defined(__clang__)
  __asm__("" : "+x"(b));
#endif
  return b;
}}
"""

_REGISTERS = {16: "defined(__x86_64__)", 32: "defined(__AVX__)", 64: "defined(__AVX512F__)"}
"""By the bytes of a vector: where one register of x86 holds it. Elsewhere a compiler splits it: no operand is whole."""

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
#if !defined(PENSTOCK_ELEMENTWISE) && defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_fma)
#define PENSTOCK_ELEMENTWISE
#endif
#endif
#ifndef __GNUC__
#error "the sums of tiles are vectors of GCC and Clang: compile for the machine \\"host\\" instead"
#endif
typedef {T} pen_{N} __attribute__((vector_size({BYTES}), aligned({SIZE}), may_alias));
typedef {T} pen_part_{N} __attribute__((vector_size({PART}), aligned({SIZE}), may_alias));
static inline pen_{N} pen_splat_{N}({T} a) {{ return (pen_{N}){{{COPIES}}}; }}
/* Every second element, up to the last one and not beyond: the second of two loads begins with an odd one. */
static inline pen_{N} pen_every_second_{N}(const {T} *a) {{
#if defined(PENSTOCK_SHUFFLES)
  return __builtin_shufflevector(*(const pen_{N} *)a, *(const pen_{N} *)(a + {LAST}), {CHOSEN});
#else
  return (pen_{N}){{{ELEMENTS}}};
#endif
}}
typedef {INTEGER} pen_bits_{N} __attribute__((vector_size({BYTES}), aligned({SIZE}), may_alias));
/* The smaller and the larger one; `b` if one is NaN, or both are zeros. */
static inline pen_{N} pen_least_{N}(pen_{N} a, pen_{N} b) {{
#if {HAS_EXTREMA}
  return {SMALLEST};
#else
  const pen_bits_{N} first = a < b;
  return (pen_{N})(((pen_bits_{N})a & first) | ((pen_bits_{N})b & ~first));
#endif
}}
static inline pen_{N} pen_most_{N}(pen_{N} a, pen_{N} b) {{
#if {HAS_EXTREMA}
  return {LARGEST};
#else
  const pen_bits_{N} first = a > b;
  return (pen_{N})(((pen_bits_{N})a & first) | ((pen_bits_{N})b & ~first));
#endif
}}
/* NaN if one is NaN; -0 is below +0. In either order the same but for NaN and for zeros, of which bits are combined. */
static inline pen_{N} pen_maximum_{N}(pen_{N} a, pen_{N} b) {{
  const pen_bits_{N} first = (pen_bits_{N})pen_most_{N}(a, b), second = (pen_bits_{N})pen_most_{N}(b, a);
{JOINED}
}}
static inline pen_{N} pen_minimum_{N}(pen_{N} a, pen_{N} b) {{
  return (pen_{N})((pen_bits_{N})pen_least_{N}(a, b) | (pen_bits_{N})pen_least_{N}(b, a));
}}
static inline pen_{N} pen_round_even_{N}(pen_{N} a) {{
#if {HAS_EXTREMA}
  return {ROUND};
#else
  pen_{N} b;
  for (int i = 0; i < {LANES}; ++i) b[i] = rint{F}(a[i]);
  return b;
#endif
}}
static inline pen_{N} pen_fma_{N}(pen_{N} a, pen_{N} b, pen_{N} c) {{
#if {HAS_FMA}
  return {FMA};
#elif defined(PENSTOCK_ELEMENTWISE)
  return __builtin_elementwise_fma(a, b, c);
#else
  pen_{N} d;
  for (int i = 0; i < {LANES}; ++i) d[i] = fma{F}(a[i], b[i], c[i]);
  return d;
#endif
}}
"""


_JOINED = "  return (pen_{N})(((first | second) & {MAX}) | (first & second));"
_JOINED_AT_ONCE = """\
#if {HAS_EXTREMA}
  typedef {WORD} words __attribute__((vector_size({BYTES})));
  return (pen_{N})__builtin_ia32_pternlog{W}512_mask((words)first, (words)second, (words){{0}} + {MAX}, 0xe8, -1);
#else
{OTHERWISE}
#endif"""
"""
The bits that two of three have, which a processor may know as one operation. GCC takes `long long`, which `int64_t` may
not be.
"""


def vector_helpers(key: str) -> str:
    """The definitions for vectors of one type; the compilers have names of their own for the fused multiply-add."""
    element, lanes = key.removeprefix(VECTOR).split("x")
    if element.startswith("i"):
        bits, count = int(element[1:]), int(lanes)
        width = bits // 8 * count
        return _INTEGER_HELPERS.format(
            B=bits,
            N=f"{element}x{count}",
            BYTES=width,
            SIZE=bits // 8,
            LANES=count,
            COPIES=", ".join(["a"] * count),
            IN_REGISTER=_REGISTERS.get(width, "0"),
        )
    count, size = int(lanes), 8 if element == "f64" else 4
    suffix, width = "pd" if element == "f64" else "ps", count * size
    has_fma, has_extrema, wide = _X86.get(width, ("0", "0", ""))
    # Those of 512 bits take a mask, and how to round, which is as ever.
    wide, last = (f"{wide}_mask", ", -1, 4") if width == 64 else (wide, "")
    extremum = f"__builtin_ia32_{{}}{suffix}{wide}(a, b{', b' if last else ''}{last})"
    rounded = f"__builtin_ia32_round{suffix}{wide}(a, 8)"
    if width == 64:
        rounded = f"__builtin_ia32_rndscale{suffix}_mask(a, 8, a, -1, 4)"
    name, most = f"{element}x{count}", "INT64_MAX" if element == "f64" else "INT32_MAX"
    joined = _JOINED.format(N=name, MAX=most)
    if width == 64:
        letter, word = ("q", "long long") if element == "f64" else ("d", "int")
        joined = _JOINED_AT_ONCE.format(
            N=name, MAX=most, W=letter, WORD=word, BYTES=width, HAS_EXTREMA=has_extrema, OTHERWISE=joined
        )
    return _HELPERS.format(
        T="double" if element == "f64" else "float",
        N=name,
        BYTES=width,
        SIZE=size,
        LANES=count,
        COPIES=", ".join(["a"] * count),
        PART=SHORTEST,
        LAST=count - 1,
        INTEGER="int64_t" if element == "f64" else "int32_t",
        JOINED=joined,
        LARGEST=extremum.format("max"),
        SMALLEST=extremum.format("min"),
        HAS_EXTREMA=has_extrema,
        CHOSEN=", ".join(map(str, [*range(0, count, 2), *range(count + 1, 2 * count, 2)])),
        ELEMENTS=", ".join(f"a[{2 * lane}]" for lane in range(count)),
        F="" if element == "f64" else "f",
        HAS_FMA=has_fma,
        FMA=f"__builtin_ia32_vfmadd{suffix}{wide}(a, b, c{last})",
        ROUND=rounded,
    )


_PRODUCT = """\
/* Adds to each sum the products of {GROUP} bytes of a, the same for all, and of as many of b, its own. */
static inline pen_{SUMS} {NAME}(pen_{SUMS} acc, const int8_t *a, const int8_t *b) {{
#if {HAS_FEATURES} && defined(__GNUC__)
  {STATEMENTS}
#else
  for (int n = 0; n < {LANES}; ++n) {{
    for (int k = 0; k < {GROUP}; ++k) acc[n] += ({A})a[k] * ({B})b[n * {GROUP} + k];
  }}
#endif
  return acc;
}}
"""


def product_name(product: VectorProduct) -> str:
    """The function of an intrinsic of the host."""
    return f"pen_{product.intrinsic.sym_name.data}"


def product_helper(product: VectorProduct) -> str:
    """The definition of that function."""
    intrinsic = product.intrinsic
    assert intrinsic.template is not None
    names = [name.data for name in intrinsic.operand_names]
    statements = intrinsic.template.fill(dict(zip(names, ("a", "b", "acc"), strict=True)))
    macros = [macro for macro, feature in FEATURES.items() if feature in intrinsic.features]
    first, second = ("uint8_t" if is_unsigned(element) else "int8_t" for element in product.elements[:2])
    return _PRODUCT.format(
        NAME=product_name(product),
        SUMS=f"i32x{product.lanes}",
        HAS_FEATURES=" && ".join(f"defined({macro})" for macro in macros) or "1",
        STATEMENTS="\n  ".join(line.strip() for line in statements.strip().splitlines()),
        LANES=product.lanes,
        GROUP=product.group,
        A=first,
        B=second,
    )
