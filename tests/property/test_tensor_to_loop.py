# SPDX-License-Identifier: Apache-2.0
"""
Random programs on tensors that overwrite, slice, put back, carry and concatenate whatever is at hand: on memrefs,
and with buffers that share bytes, they compute the same, and leave their arguments alone.
"""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.dialects.context import make_context
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify

Shape = tuple[int, int]
Value = tuple[str, Shape]

WHOLE, ROWS, COLUMNS = (4, 6), (2, 6), (4, 3)

KERNELS = """
func.func private @one(%p: tensor<2x6xf32>) -> tensor<2x6xf32> {
  %e = tensor.empty() : tensor<2x6xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%p : tensor<2x6xf32>) outs(%e : tensor<2x6xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<2x6xf32>
  func.return %y : tensor<2x6xf32>
}
func.func private @two(%p: tensor<4x3xf32>, %q: tensor<4x6xf32>) -> (tensor<4x3xf32>, tensor<4x6xf32>) {
  %r = tensor.insert_slice %p into %q[0, 1] [4, 3] [1, 1] : tensor<4x3xf32> into tensor<4x6xf32>
  func.return %p, %r : tensor<4x3xf32>, tensor<4x6xf32>
}
"""


def type_of(shape: Shape) -> str:
    return f"tensor<{shape[0]}x{shape[1]}xf32>"


class RandomProgram:
    """Builds a program op by op; `random` takes every decision."""

    def __init__(self, random: Random):
        self.random = random
        self.lines: list[str] = []
        self.names = 0
        self.empties: list[Value] = []
        self.scopes: list[list[Value]] = [[]]
        arguments: list[Value] = [
            (f"%x{number}", random.choice([WHOLE, ROWS, COLUMNS])) for number in range(random.randint(1, 2))
        ]
        self.shapes = [shape for _, shape in arguments]
        self.scopes[0] += arguments
        self.lines += [f"%c{number} = arith.constant {number} : index" for number in range(3)]
        self.lines.append("%k = arith.constant 3.0 : f32")
        for shape in (WHOLE, ROWS):
            self.empties.append((self.emit("e", f"tensor.empty() : {type_of(shape)}"), shape))
            self.define(self.update(self.empties[-1][0], [], shape, reads=False), shape)
        self.block(random.randint(4, 12), [])
        known = self.scopes[0]
        results = [random.choice(known[-4:] if random.random() < 0.6 else known) for _ in range(random.randint(1, 3))]
        types = ", ".join(type_of(shape) for _, shape in results)
        self.lines.append(f"func.return {', '.join(name for name, _ in results)} : {types}")
        heads = ", ".join(f"{name}: {type_of(shape)}" for name, shape in arguments)
        self.text = KERNELS + f"func.func @main({heads}) -> ({types}) {{\n" + "\n".join(self.lines) + "\n}\n"

    def name(self, stem: str) -> str:
        self.names += 1
        return f"%{stem}_{self.names}"

    def emit(self, stem: str, text: str) -> str:
        name = self.name(stem)
        self.lines.append(f"{name} = {text}")
        return name

    def define(self, name: str, shape: Shape) -> None:
        self.scopes[-1].append((name, shape))

    def pick(self, shape: Shape | None = None) -> Value:
        known = [value for scope in self.scopes for value in scope if shape in (None, value[1])]
        if not known:
            assert shape is not None
            empty = self.emit("e", f"tensor.empty() : {type_of(shape)}")
            return self.update(empty, [], shape, reads=False), shape
        return known[-1] if self.random.random() < 0.5 else self.random.choice(known)

    def update(self, dest: str, sources: list[str], shape: Shape, *, reads: bool = True, mixed: bool = False) -> str:
        """A structured op over `dest`; `mixed` reads whole rows, so that it must not work in place."""
        own, name = self.names, self.name("v")
        written = "affine_map<(i, j, k) -> (i, j)>" if mixed else "affine_map<(i, j) -> (i, j)>"
        read = "affine_map<(i, j, k) -> (i, k)>" if mixed else written
        kinds = '"parallel", "parallel"' + (', "reduction"' if mixed else "")
        maps = ", ".join([read] * len(sources) + [written])
        ins = f"ins({', '.join(sources)} : {', '.join([type_of(shape)] * len(sources))})" if sources else ""
        arguments = "".join(f"%a{number}_{own}: f32, " for number in range(len(sources)))
        other = f"%a0_{own}" if sources else "%k"
        yielded = f"%s_{own} = arith.{'addf %o_' + str(own) if reads else 'mulf %k'}, {other} : f32"
        self.lines.append(
            f"""{name} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
              {ins} outs({dest} : {type_of(shape)}) {{
            ^bb0({arguments}%o_{own}: f32):
              {yielded}
              linalg.yield %s_{own} : f32
            }} -> {type_of(shape)}"""
        )
        return name

    def place(self, rounds: list[str], part: Shape) -> str:
        """Where a part of a whole begins: at a number, or at the round of a loop."""
        room = WHOLE[0] - part[0] + WHOLE[1] - part[1]
        at = self.random.choice(rounds) if rounds and self.random.random() < 0.6 else str(self.random.randint(0, room))
        return f"[{at}, 0]" if part == ROWS else f"[0, {at}]"

    def insert(self, source: Value, dest: str, at: str) -> str:
        rows, columns = source[1]
        return self.emit(
            "i",
            f"tensor.insert_slice {source[0]} into {dest}{at} [{rows}, {columns}] [1, 1] "
            f": {type_of(source[1])} into {type_of(WHOLE)}",
        )

    def block(self, count: int, rounds: list[str]) -> None:
        for _ in range(count):
            self.step(rounds)

    def step(self, rounds: list[str]) -> None:
        name, shape = self.pick()
        match self.random.randint(0, 11 if len(rounds) < 2 else 9):
            case 0:
                sources = [self.pick(shape)[0]] if self.random.random() < 0.6 else []
                self.define(self.update(name, sources, shape), shape)
            case 1:
                shared = [empty for empty, of in self.empties if of == shape]
                dest = shared[0] if shared else self.emit("e", f"tensor.empty() : {type_of(shape)}")
                self.define(self.update(dest, [name], shape, reads=False), shape)
            case 2:
                self.define(self.update(self.pick(shape)[0], [name], shape, mixed=True), shape)
            case 3 | 4:
                self.take_and_put_back(self.pick(WHOLE)[0], rounds)
            case 5:
                source = (name, shape) if shape != WHOLE else self.pick(self.random.choice([ROWS, COLUMNS]))
                self.define(self.insert(source, self.pick(WHOLE)[0], self.place(rounds, source[1])), WHOLE)
            case 6:
                upper, lower = self.pick(ROWS), self.pick(ROWS)
                empty = self.emit("e", f"tensor.empty() : {type_of(WHOLE)}")
                self.define(self.insert(lower, self.insert(upper, empty, "[0, 0]"), "[2, 0]"), WHOLE)
            case 7:
                size = shape[0] * shape[1]
                flat = self.emit(
                    "f", f"tensor.collapse_shape {name} [[0, 1]] : {type_of(shape)} into tensor<{size}xf32>"
                )
                again = f"tensor.expand_shape {flat} [[0, 1]] output_shape [{shape[0]}, {shape[1]}]"
                self.define(self.emit("f", f"{again} : tensor<{size}xf32> into {type_of(shape)}"), shape)
            case 8:
                self.call()
            case 9:
                self.pad(self.pick(ROWS)[0], rounds)
            case _:
                self.loop(rounds)

    def take_and_put_back(self, source: str, rounds: list[str]) -> None:
        part = self.random.choice([ROWS, COLUMNS])
        at = self.place(rounds, part)
        taken = self.emit(
            "t",
            f"tensor.extract_slice {source}{at} [{part[0]}, {part[1]}] [1, 1] : {type_of(WHOLE)} to {type_of(part)}",
        )
        self.define(taken, part)
        if self.random.random() < 0.7:
            changed = self.update(taken, [], part)
            self.define(changed, part)
            dest = source if self.random.random() < 0.7 else self.pick(WHOLE)[0]
            self.define(self.insert((changed, part), dest, at), WHOLE)

    def call(self) -> None:
        if self.random.random() < 0.6:
            source = self.pick(ROWS)[0]
            self.define(self.emit("r", f"func.call @one({source}) : ({type_of(ROWS)}) -> {type_of(ROWS)}"), ROWS)
            return
        left, right, results = self.pick(COLUMNS)[0], self.pick(WHOLE)[0], self.name("r")
        types = f"{type_of(COLUMNS)}, {type_of(WHOLE)}"
        self.lines.append(f"{results}:2 = func.call @two({left}, {right}) : ({types}) -> ({types})")
        self.define(f"{results}#0", COLUMNS)
        self.define(f"{results}#1", WHOLE)

    def pad(self, source: str, rounds: list[str]) -> None:
        padded = self.emit(
            "p",
            f"""tensor.pad {source} low[1, 0] high[1, 0] {{
            ^bb0(%pi_{self.names}: index, %pj_{self.names}: index):
              tensor.yield %k : f32
            }} : {type_of(ROWS)} to {type_of(WHOLE)}""",
        )
        if self.random.random() < 0.4:
            self.define(padded, WHOLE)
            return
        box = f"tensor.extract_slice {padded}{self.place(rounds, ROWS)} [2, 6] [1, 1]"
        self.define(self.emit("t", f"{box} : {type_of(WHOLE)} to {type_of(ROWS)}"), ROWS)

    def loop(self, rounds: list[str]) -> None:
        starts = [self.pick() for _ in range(self.random.randint(1, 3))]
        index, results = self.name("n"), self.name("l")
        carried = [(self.name("c"), shape) for _, shape in starts]
        types = ", ".join(type_of(shape) for _, shape in starts)
        pairs = ", ".join(f"{name} = {start}" for (name, _), (start, _) in zip(carried, starts, strict=True))
        self.lines.append(
            f"{results}:{len(starts)} = scf.for {index} = %c0 to %c2 step %c1 iter_args({pairs}) -> ({types}) {{"
        )
        self.scopes.append(list(carried))
        self.block(self.random.randint(2, 6), [*rounds, index])
        inside = self.scopes[-1]
        known = inside if self.random.random() < 0.85 else [value for scope in self.scopes for value in scope]
        yielded: list[str] = []
        for _, shape in starts:
            fitting = [name for name, of in known if of == shape]
            yielded.append(fitting[-1] if self.random.random() < 0.6 else self.random.choice(fitting))
        self.scopes.pop()
        self.lines.append(f"scf.yield {', '.join(yielded)} : {types}\n}}")
        for number, (_, shape) in enumerate(starts):
            self.define(f"{results}#{number}", shape)


def run(text: str, pipeline: str, inputs: list[Array]) -> list[Array]:
    ctx = make_context()
    module = parse_text(ctx, SourceText("random.mlir", text)).module
    verify(module)
    if pipeline:
        run_passes(ctx, module, read_pipeline(pipeline))
    given = [array.copy() for array in inputs]
    found = run_module(module, given, WeightStore(), ordered=True)
    for left, right in zip(inputs, given, strict=True):
        np.testing.assert_array_equal(left, right, err_msg="an argument was overwritten")
    return found


@examples(30)
@given(st.integers(0, 2**32))
def test_a_random_program_computes_the_same_on_memrefs(seed: int) -> None:
    program = RandomProgram(Random(seed))
    numbers = np.random.default_rng(seed)
    inputs: list[Array] = [numbers.integers(-3, 4, shape).astype(np.float32) for shape in program.shapes]
    wanted = run(program.text, "", inputs)
    for pipeline in ("insert-copies", "tensor-to-loop,mem-plan"):
        for left, right in zip(wanted, run(program.text, pipeline, inputs), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"{pipeline}\n{program.text}")
