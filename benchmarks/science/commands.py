# SPDX-License-Identifier: Apache-2.0
"""
Commands written by hand, at the accelerator level, for a core like the one that TOpLib compiles for.

A recipe says what an assembly programmer would: what is loaded for each tile, the commands of the vector unit in
their order, and which buffer is stored. The text has a ring of slots for each buffer that a transfer touches, so that
the next tile is loaded and the last one stored meanwhile, and one place for each of the others; what touches a slot
last frees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

DEVICE = "neural_accelerator"
SCOPE = '"neural"'
ALIGNMENT = 64
IDENTITY = "affine_map<(d0) -> (d0)>"
SQUARE = "affine_map<(d0, d1) -> (d0, d1)>"


@dataclass(frozen=True)
class Recipe:
    """An operator on vectors of 32-bit floats, element by element."""

    inputs: tuple[str, ...]
    """What is loaded."""
    commands: tuple[str, ...]
    """Intrinsic and buffers, and an immediate behind `#`: `vec_add b a`, `vec_max_imm x #0.0`."""
    stored: str

    @property
    def buffers(self) -> list[str]:
        """All, in the order in which they are first used."""
        return list(dict.fromkeys([*self.inputs, *(b for c in self.commands for b in c.split()[1:] if b[0] != "#")]))

    def text(self, count: int, tile: int, slots: int) -> str:
        """The program for vectors of `count` elements, `tile` at a time."""
        ringed = [each for each in self.buffers if each in self.inputs or each == self.stored]
        whole, part, chip = (
            f"memref<{count}xf32>",
            f"memref<{tile}xf32, strided<[1], offset: ?>>",
            f"memref<{tile}xf32, {SCOPE}>",
        )
        sizes = [4 * tile * (slots if each in ringed else 1) for each in self.buffers]
        places = dict(zip(self.buffers, accumulate(sizes, initial=0), strict=False))
        names = [*self.inputs, "result"]
        lines = [
            f"func.func @main({', '.join(_argument(each, whole) for each in names)}) {{",
            f"  func.call @kernel({', '.join(f'%arg_{each}' for each in names)})",
            f"      : ({', '.join([whole] * len(names))}) -> ()",
            "  func.return",
            "}",
            f"func.func private @kernel({', '.join(f'%arg_{each}: {whole}' for each in names)}) "
            f"attributes {{device = @{DEVICE}}} {{",
            "  %ready = accel.ready",
            *(
                f"  %{name} = arith.constant {value} : index"
                for name, value in (("c0", 0), ("end", count), ("step", tile))
            ),
        ]
        for each in self.buffers:
            at = places[each]
            lines.append(
                f"  %{each}_ring = mem.ring {slots} at {at} : !mem.ring<{chip}>"
                if each in ringed
                else f"  %{each} = mem.buffer at {at} : {chip}"
            )
        free = {each: [f"%{each}_free{slot}" for slot in range(slots)] for each in ringed}
        carried = [token for each in ringed for token in free[each]]
        types = ", ".join(["!accel.token"] * len(carried))
        results = ", ".join(f"%done{number}" for number in range(len(carried)))
        initial = ", ".join(f"{token} = %ready" for token in carried)
        lines += [
            f"  {results} = scf.for %at = %c0 to %end step %step iter_args({initial}) -> ({types}) {{",
            "    %iteration = arith.divui %at, %step : index",
            *(f"    %{each} = mem.slot %{each}_ring[%iteration] : !mem.ring<{chip}>" for each in ringed),
        ]
        made: dict[str, str] = {}
        for each in self.inputs:
            lines += [
                f"    %{each}_part = memref.subview %arg_{each}[%at] [{tile}] [1] : {whole} to {part}",
                f'    %{each}_loaded = accel.dma %{each}_part to %{each} on "load_core" after({free[each][0]})',
                f"      : {part} to {chip}",
            ]
            made[each] = f"%{each}_loaded"
        for number, command in enumerate(self.commands):
            intrinsic, *words = command.split()
            used = [word for word in words if word[0] != "#"]
            immediate = "".join(f"imm [{word[1:]} : f32] " for word in words if word[0] == "#")
            waits = [made.get(each) or free[each][0] for each in used if each in ringed]
            maps, buffers = ", ".join([IDENTITY] * len(used)), ", ".join(f"%{each}" for each in used)
            after = f" after({', '.join(dict.fromkeys(waits))})" if waits else ""
            lines.append(
                f"    %e{number} = accel.exec @{intrinsic} {immediate}extents [{tile}] maps [{maps}]({buffers}){after}"
                f" : {', '.join([chip] * len(used))}"
            )
            made |= {each: f"%e{number}" for each in used if each in ringed}
        lines += [
            f'    %stored = accel.dma %{self.stored} to %arg_result[%at] on "store_core" after({made[self.stored]})',
            f"      : {chip} to {whole}",
        ]
        made[self.stored] = "%stored"
        yielded = [token for each in ringed for token in (*free[each][1:], made[each])]
        lines += [f"    scf.yield {', '.join(yielded)} : {types}", "  }", "  accel.barrier", "  func.return", "}"]
        return "\n".join(lines) + "\n"


def _argument(name: str, type: str) -> str:
    word = 'graph.output = "y"' if name == "result" else f'graph.name = "{name}"'
    return f"%arg_{name}: {type} {{{word}}}"


RECIPES: Mapping[str, Recipe] = {
    "add": Recipe(("a", "b"), ("vec_add b a",), "a"),
    "multiply": Recipe(("a", "b"), ("vec_mul b a",), "a"),
    "maximum": Recipe(("a", "b"), ("vec_max b a",), "a"),
    "relu": Recipe(("x",), ("vec_max_imm x #0.0",), "x"),
    "exponential": Recipe(("x",), ("vec_exp x y",), "y"),
    "inverse": Recipe(("x",), ("vec_reciprocal x y",), "y"),
    "square": Recipe(("x",), ("vec_mul x x",), "x"),
    "sigmoid": Recipe(("x",), ("vec_mul_imm x #-1.0", "vec_exp x t", "vec_add_imm t #1.0", "vec_reciprocal t y"), "y"),
    "silu": Recipe(
        ("x",), ("vec_exp x t", "vec_reciprocal t u", "vec_add_imm u #1.0", "vec_reciprocal u y", "vec_mul x y"), "y"
    ),
}
"""By the name of the operator in examples/operators."""


def product(size: int, rows: int, slots: int) -> str:
    """A square product of 16-bit floats: the right factor stays in its scope, `rows` of the left one at a time."""
    whole, weights = f"memref<{size}x{size}xf16>", f'memref<{size}x{size}xf16, "weight">'
    part = f"memref<{rows}x{size}xf16, strided<[{size}, 1], offset: ?>>"
    half, single = f"memref<{rows}x{size}xf16, {SCOPE}>", f"memref<{rows}x{size}xf32, {SCOPE}>"
    maps = ", ".join(f"affine_map<(d0, d1, d2) -> ({dims})>" for dims in ("d0, d2", "d2, d1", "d0, d1"))
    tokens = [f"%{name}_free{slot}" for name in ("a", "y") for slot in range(slots)]
    a, y = tokens[:slots], tokens[slots:]
    types = ", ".join(["!accel.token"] * len(tokens))
    bytes_of_half = 2 * rows * size
    arguments = ", ".join(f"%arg_{name}: {whole}" for name in "abc")
    return f"""
func.func @main({_argument("a", whole)}, {_argument("b", whole)}, {_argument("result", whole)}) {{
  func.call @kernel(%arg_a, %arg_b, %arg_result) : ({whole}, {whole}, {whole}) -> ()
  func.return
}}
func.func private @kernel({arguments}) attributes {{device = @{DEVICE}, macs = {size**3} : i64}} {{
  %ready = accel.ready
  %c0 = arith.constant 0 : index
  %end = arith.constant {size} : index
  %step = arith.constant {rows} : index
  %w = mem.buffer at 0 : {weights}
  %sums = mem.buffer at 0 : {single}
  %a_ring = mem.ring {slots} at {2 * bytes_of_half} : !mem.ring<{half}>
  %y_ring = mem.ring {slots} at {(2 + slots) * bytes_of_half} : !mem.ring<{half}>
  %held = accel.dma %arg_b to %w on "load_core" : {whole} to {weights}
  {", ".join(f"%done{n}" for n in range(len(tokens)))} = scf.for %at = %c0 to %end step %step
      iter_args({", ".join(f"{token} = %ready" for token in tokens)}) -> ({types}) {{
    %iteration = arith.divui %at, %step : index
    %a = mem.slot %a_ring[%iteration] : !mem.ring<{half}>
    %y = mem.slot %y_ring[%iteration] : !mem.ring<{half}>
    %a_part = memref.subview %arg_a[%at, 0] [{rows}, {size}] [1, 1] : {whole} to {part}
    %loaded = accel.dma %a_part to %a on "load_core" after({a[0]}) : {part} to {half}
    %zeroed = accel.exec @vec_zero extents [{rows}, {size}] maps [{SQUARE}](%sums) : {single}
    %summed = accel.exec @mlp extents [{rows}, {size}, {size}] maps [{maps}](%a, %w, %sums)
      after(%held, %loaded, %zeroed) : {half}, {weights}, {single}
    %narrowed = accel.exec @vec_narrow extents [{rows}, {size}] maps [{SQUARE}, {SQUARE}](%sums, %y)
      after(%summed, {y[0]}) : {single}, {half}
    %stored = accel.dma %y to %arg_c[%at, 0] on "store_core" after(%narrowed) : {half} to {whole}
    scf.yield {", ".join([*a[1:], "%summed", *y[1:], "%stored"])} : {types}
  }}
  accel.barrier
  func.return
}}
"""


def fitting(recipe: Recipe, tiles: Sequence[int], slots: int, capacity: int) -> list[int]:
    """The tiles whose buffers fit a scope of `capacity` bytes."""
    ringed = {*recipe.inputs, recipe.stored}
    held = sum(slots if each in ringed else 1 for each in recipe.buffers)
    return [tile for tile in tiles if 4 * tile * held <= capacity and 4 * tile % ALIGNMENT == 0]
