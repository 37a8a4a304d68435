# SPDX-License-Identifier: Apache-2.0
"""
Transposes in generated C: squares of elements go through vectors, which are loaded along one dim and stored along the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.linalg.ops import YieldOp

from penstock.dialects.machine import TargetOp
from penstock.lowering.codegen.nest import LoopNest, NestLoop
from penstock.lowering.codegen.structured import Structured
from penstock.lowering.codegen.views import View
from penstock.lowering.to_c.vectors import SHORTEST, VectorType, vector_type

TRANSPOSE = "transpose_"
"""What the keys of the helpers begin with."""


@dataclass(frozen=True)
class Transpose:
    """The loop along which an op reads adjacent elements, the one along which it writes them, and those around both."""

    read: NestLoop
    written: NestLoop
    around: tuple[NestLoop, ...]
    vector: VectorType

    @property
    def helper(self) -> str:
        """The key of its helper in the prelude."""
        return f"{TRANSPOSE}{self.vector.element.name}x{self.vector.lanes}"

    def statement(self, source: str, target: str) -> str:
        """Copies a square that begins at these elements."""
        return f"pen_{self.helper}(&{source}, {self.written.strides[0]}, &{target}, {self.read.strides[1]});"


def transpose_of(structured: Structured, plan: LoopNest, target: TargetOp | None) -> Transpose | None:
    """An op as a transpose of whole vectors; None for one that computes, or has too few elements in a dim."""
    ops, sources = list(structured.body.ops), [operand.source for operand in structured.operands]
    is_copy = len(ops) == 1 and isinstance(ops[0], YieldOp) and ops[0].operands[0] is structured.body.args[0]
    if plan.lanes is None or plan.sequential or not is_copy or len(sources) != 2 or structured.is_open:
        return None
    types = [source.ctype for source in sources if isinstance(source, View)]
    written, steps = plan.lanes.loop, (*plan.outer, *plan.inner)
    read = next((step.loop for step in steps if step.loop.strides[0] == 1 and step.loop.strides[1]), None)
    if read is None or written.strides[1] != 1 or written.strides[0] <= 1 or types != types[:1] * 2:
        return None
    shortest = min(read.extent, written.extent)
    vector = vector_type(target, types[0], 1 << (shortest.bit_length() - 1))
    if vector is None or not types[0].is_float or vector.lanes > shortest or vector.lanes * types[0].size < SHORTEST:
        return None
    return Transpose(read, written, tuple(step.loop for step in steps if step.loop is not read), vector)


_HELPER = """\
/* Copies a square of elements, whose rows are `p` and then `q` apart, so that rows become columns. */
static inline void pen_{KEY}(const {T} *a, int64_t p, {T} *b, int64_t q) {{
#if defined(PENSTOCK_SHUFFLES)
  for (int i = 0; i < {LANES}; i += {QUARTER}) {{
    {STATEMENTS}
  }}
#else
  for (int i = 0; i < {LANES}; ++i) {{
    for (int j = 0; j < {LANES}; ++j) b[i * q + j] = a[j * p + i];
  }}
#endif
}}
"""


def transpose_helper(key: str) -> str:
    """
    The definition for squares of one size: of each 16 bytes of the columns vectors have those of all rows, as many
    rows apart, and the squares in them are transposed by interleaving.
    """
    element, _, lanes = key.removeprefix(TRANSPOSE).partition("x")
    count, quarter = int(lanes), SHORTEST * 8 // int(element[1:])
    name, size = f"pen_{element}x{lanes}", int(element[1:]) // 8
    lines: list[str] = []
    vectors = [f"r{row}" for row in range(quarter)]
    for row, vector in enumerate(vectors):
        parts = [f"*(const pen_part_{element}x{lanes} *)(a + {at} * p + i)" for at in range(row, count, quarter)]
        lines.append(f"const {name} {vector} = {_joined(parts, quarter)};")
    run = 1
    while run < quarter:
        pairs = [(vectors[at], vectors[at + run]) for at in range(quarter) if not at & run]
        halves = [(*pair, start) for pair in pairs for start in (0, quarter // 2)]
        vectors = [f"{'st'[run > 1]}{number}" for number in range(quarter)]
        for vector, (one, other, start) in zip(vectors, halves, strict=True):
            turns = [first + start + at for first in range(0, count, quarter) for at in range(0, quarter // 2, run)]
            places = [at + side for at in turns for side in (*range(run), *range(count, count + run))]
            lines.append(f"const {name} {vector} = __builtin_shufflevector({one}, {other}, {_listed(places)});")
        run *= 2
    lines += [f"*({name} *)(b + (i + {at}) * q) = {vector};" for at, vector in enumerate(vectors)]
    return _HELPER.format(
        KEY=key, T="double" if size == 8 else "float", LANES=count, QUARTER=quarter, STATEMENTS="\n    ".join(lines)
    )


def _joined(parts: Sequence[str], length: int) -> str:
    """Vectors of so many elements side by side."""
    while len(parts) > 1:
        length *= 2
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [f"__builtin_shufflevector({left}, {right}, {_listed(range(length))})" for left, right in pairs]
    return parts[0]


def _listed(places: Sequence[int]) -> str:
    return ", ".join(map(str, places))
