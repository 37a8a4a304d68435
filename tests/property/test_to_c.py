# SPDX-License-Identifier: Apache-2.0
"""Random structured ops and random copies: C has the bits of the interpreter, and LLVM those of C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import agree, agrees_by_llvm
from numpy.typing import NDArray
from programs import verified
from sampling import examples
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.passes.toolchain import find_compiler
from penstock.runtime.interpreter import run_module
from penstock.runtime.native import load_native

Array = NDArray[Any]
DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
}

try:
    find_compiler()
except UserError:
    pytest.skip("no C compiler", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:  # pyright: ignore[reportUnusedFunction]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@dataclass(frozen=True)
class Operand:
    """A memref and the map that walks it."""

    shape: tuple[int, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Nest:
    """A generic: its extents, which dims are reduced, its operands (the output last) and its body."""

    extents: tuple[int, ...]
    reduced: frozenset[int]
    operands: tuple[Operand, ...]
    body: str

    def text(self, number: int, type: str) -> str:
        dims = ", ".join(f"d{dim}" for dim in range(len(self.extents)))
        maps = ", ".join(f"affine_map<({dims}) -> ({', '.join(each.results)})>" for each in self.operands)
        kinds = ", ".join('"reduction"' if dim in self.reduced else '"parallel"' for dim in range(len(self.extents)))
        names = [f"%x{number}_{each}" for each in range(len(self.operands) - 1)]
        types = [memref(each.shape, type) for each in self.operands]
        args = ", ".join(f"%e{each}: {type}" for each in range(len(self.operands)))
        ins = f"ins({', '.join(names)} : {', '.join(types[:-1])})" if names else ""
        return f"""linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
            {ins} outs(%o{number} : {types[-1]}) {{
          ^bb0({args}):
            {self.body}
            linalg.yield %r : {type}
          }}"""


def memref(shape: tuple[int, ...], type: str) -> str:
    return f"memref<{''.join(f'{size}x' for size in shape)}{type}>"


def bodies(type: str, inputs: int) -> list[str]:
    """Bodies on that many inputs; the last argument is the output."""
    f = "f" if type.startswith("f") else "i"
    out, last = f"%e{inputs}", f"%e{max(0, inputs - 1)}"
    largest = "arith.maximumf" if f == "f" else "arith.maxsi"
    found = [
        f"%r = arith.add{f} {out}, %e0 : {type}",
        f"%p = arith.mul{f} %e0, {last} : {type} %r = arith.add{f} {out}, %p : {type}",
        f"%r = {largest} {last}, {out} : {type}",
        f"%q = arith.sub{f} {last}, %e0 : {type} %p = arith.mul{f} %q, %q : {type} "
        f"%r = arith.add{f} %p, {out} : {type}",
    ]
    return found if inputs else [f"%r = arith.add{f} {out}, {out} : {type}"]


@st.composite
def indices(draw: st.DrawFn, extents: tuple[int, ...], dims: list[int]) -> tuple[str, int]:
    """An index expression in some dims, and the size that it needs."""
    kind = draw(st.sampled_from(["dim", "dim", "dim", "scaled", "window", "constant", "reversed"]))
    dim = draw(st.sampled_from(dims))
    if kind == "constant":
        at = draw(st.integers(0, 2))
        return str(at), at + 1
    if kind == "scaled":
        step, at = draw(st.integers(2, 3)), draw(st.integers(0, 2))
        return f"d{dim} * {step} + {at}", (extents[dim] - 1) * step + at + 1
    if kind == "window":
        other = draw(st.sampled_from(dims))
        return f"d{dim} * 2 + d{other}", (extents[dim] - 1) * 2 + extents[other]
    if kind == "reversed":
        return f"d{dim} * -1 + {extents[dim] - 1}", extents[dim]
    return f"d{dim}", extents[dim]


@st.composite
def nests(draw: st.DrawFn, type: str) -> Nest:
    rank = draw(st.integers(1, 4))
    sizes = st.sampled_from([1, 2, 3, 5, 7, 8, 9, 16, 17] if rank > 2 else [1, 3, 7, 16, 30, 33, 65])
    extents = tuple(draw(sizes) for _ in range(rank))
    dims = list(range(rank))
    reduced = frozenset(draw(st.sets(st.sampled_from(dims), max_size=rank)))
    operands: list[Operand] = []
    inputs = draw(st.integers(0, 2))
    for _ in range(inputs):
        found = [draw(indices(extents, dims)) for _ in range(draw(st.integers(1, 3)))]
        operands.append(Operand(tuple(size for _, size in found), tuple(text for text, _ in found)))
    free = draw(st.permutations([dim for dim in dims if dim not in reduced]))
    operands.append(Operand(tuple(extents[dim] for dim in free), tuple(f"d{dim}" for dim in free)))
    # Every dim must be the index of something.
    named = {text for operand in operands for text in operand.results}
    missing = [dim for dim in dims if f"d{dim}" not in named]
    if missing:
        operands.insert(0, Operand(tuple(extents[dim] for dim in missing), tuple(f"d{dim}" for dim in missing)))
        inputs += 1
    return Nest(extents, reduced, tuple(operands), draw(st.sampled_from(bodies(type, inputs))))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], type: str) -> Array:
    dtype = np.dtype(DTYPES[type])
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


@examples(12)
@given(st.data())
def test_random_structured_ops_have_the_bits_of_the_interpreter(data: st.DataObject) -> None:
    """Several in one program, since the compiler takes longer to start than to compile."""
    type = data.draw(st.sampled_from(list(DTYPES)))
    found = data.draw(st.lists(nests(type), min_size=4, max_size=8))
    rng = np.random.default_rng(0)
    arguments: list[str] = []
    outputs: list[str] = []
    arrays: list[Array] = []
    lines: list[str] = []
    for number, nest in enumerate(found):
        shape = nest.operands[-1].shape
        for place, operand in enumerate(nest.operands[:-1]):
            name = f"x{number}_{place}"
            arguments.append(f'%{name}: {memref(operand.shape, type)} {{graph.name = "{name}"}}')
            arrays.append(numbers(rng, operand.shape, type))
        arguments.append(f'%s{number}: {memref(shape, type)} {{graph.name = "s{number}"}}')
        arrays.append(numbers(rng, shape, type))
        outputs.append(f'%o{number}: {memref(shape, type)} {{graph.output = "o{number}"}}')
        lines.append(f"mem.copy %s{number} to %o{number} : {memref(shape, type)} to {memref(shape, type)}")
        lines.append(nest.text(number, type))
    body = "\n".join(lines)
    text = f"func.func @main({', '.join([*arguments, *outputs])}) {{\n{body}\nfunc.return\n}}"
    module = Parser(make_context(), text).parse_module()
    module.verify()
    ours = load_native(module).run(arrays)
    agrees_by_llvm(module, arrays, ours)
    theirs = run_module(module, arrays, WeightStore(), ordered=True)
    for nest, left, right in zip(found, ours, theirs, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=str(nest))


@examples(8)
@given(st.data())
def test_random_windows_have_the_elements_of_the_interpreter(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    sizes = st.tuples(*[st.integers(1, 6)] * rank)
    lines: list[str] = []
    arguments = ['%z: memref<1xindex> {graph.name = "z"}']
    outputs: list[str] = []
    arrays: list[Array] = [np.zeros(1, np.int64)]
    for number in range(6):
        whole, box = data.draw(sizes), data.draw(sizes)
        at = [data.draw(st.integers(-size - 1, bound + 1)) for size, bound in zip(box, whole, strict=True)]
        # A sum with a number that is loaded is not known to the back end.
        known = data.draw(st.tuples(*[st.booleans()] * rank))
        offsets: list[str] = []
        for dim, (place, is_known) in enumerate(zip(at, known, strict=True)):
            if is_known:
                offsets.append(str(place))
                continue
            lines += [
                f"%k{number}_{dim} = arith.constant {place} : index",
                f"%p{number}_{dim} = arith.addi %zero, %k{number}_{dim} : index",
            ]
            offsets.append(f"%p{number}_{dim}")
        reads = data.draw(st.booleans())
        source, dest = (whole, box) if reads else (box, whole)
        window = f"[{', '.join(offsets)}]"
        left, right = (window, "") if reads else ("", window)
        padding = " else %pad" if reads else ""
        arguments.append(f'%x{number}: {memref(source, "f32")} {{graph.name = "x{number}"}}')
        arguments.append(f'%s{number}: {memref(dest, "f32")} {{graph.name = "s{number}"}}')
        outputs.append(f'%o{number}: {memref(dest, "f32")} {{graph.output = "o{number}"}}')
        types = f"{memref(source, 'f32')} to {memref(dest, 'f32')}"
        lines.append(f"mem.copy %s{number} to %o{number} : {memref(dest, 'f32')} to {memref(dest, 'f32')}")
        lines.append(f"mem.copy %x{number}{left} to %o{number}{right}{padding} : {types}")
        rng = np.random.default_rng(number)
        arrays += [rng.standard_normal(source, np.float32), rng.standard_normal(dest, np.float32)]
    body = "\n".join(
        ["%c0 = arith.constant 0 : index", "%zero = memref.load %z[%c0] : memref<1xindex>",
         "%pad = arith.constant 7.5 : f32", *lines]
    )  # fmt: skip
    text = f"func.func @main({', '.join([*arguments, *outputs])}) {{\n{body}\nfunc.return\n}}"
    module = Parser(make_context(), text).parse_module()
    module.verify()
    ours = load_native(module).run(arrays)
    agrees_by_llvm(module, arrays, ours)
    theirs = run_module(module, arrays, WeightStore(), ordered=True)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left, right)


@st.composite
def register_programs(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """An op on one or two buffers in the vector registers, and the shapes of its input and of the first values."""
    rows, lanes, depth = draw(st.integers(1, 3)), draw(st.sampled_from([4, 5, 8, 16, 24])), draw(st.integers(1, 3))
    outputs, stride = draw(st.integers(1, 2)), draw(st.sampled_from([0, 1, 2]))
    type = draw(st.sampled_from(["f32", "f64"]))
    size, shape = 8 if type == "f64" else 4, (rows, lanes)
    column = {0: "0", 1: "j", 2: "j * 2"}[stride]
    given = (depth, rows, stride * (lanes - 1) + 1)
    held = memref(shape, type).replace(">", ', "registers">')
    names = [f"%r{number}" for number in range(outputs)]
    maps = ", ".join([f"affine_map<(i, j, k) -> (k, i, {column})>", *["affine_map<(i, j, k) -> (i, j)>"] * outputs])
    steps = {
        1: [f"%n0 = arith.{{}} %b0, %a : {type}"],
        2: [f"%n0 = arith.{{}} %b0, %a : {type}", f"%n1 = arith.{{}} %b1, %b0 : {type}"],
    }[outputs]
    body = "\n".join(step.format(draw(st.sampled_from(["addf", "subf", "maximumf"]))) for step in steps)
    arguments = [f'%x: {memref(given, type)} {{graph.name = "x"}}']
    arguments += [f'%s{each}: {memref(shape, type)} {{graph.name = "s{each}"}}' for each in range(outputs)]
    arguments += [f'%o{each}: {memref(shape, type)} {{graph.output = "o{each}"}}' for each in range(outputs)]
    span = -(-rows * lanes * size // 32) * 32
    before = [f"{name} = mem.buffer at {number * span} : {held}" for number, name in enumerate(names)]
    before += [f"mem.copy %s{each} to {name} : {memref(shape, type)} to {held}" for each, name in enumerate(names)]
    after = [f"mem.copy {name} to %o{each} : {held} to {memref(shape, type)}" for each, name in enumerate(names)]
    listed = ", ".join(f"%n{each}" for each in range(outputs))
    args = ", ".join([f"%a: {type}", *(f"%b{each}: {type}" for each in range(outputs))])
    kinds = '["parallel", "parallel", "reduction"]'
    first = "\n".join(before)
    last = "\n".join(after)
    text = f"""func.func @main({", ".join(arguments)}) {{
      {first}
      linalg.generic {{indexing_maps = [{maps}], iterator_types = {kinds}}}
          ins(%x : {memref(given, type)}) outs({", ".join(names)} : {", ".join([held] * outputs)}) {{
        ^bb0({args}):
          {body}
          linalg.yield {listed} : {", ".join([type] * outputs)}
      }}
      {last}
      func.return
    }}"""
    return text, [given, *[shape] * outputs]


@examples(16)
@given(register_programs(), st.sampled_from(["host-avx2", "host-avx512"]))
def test_random_ops_on_registers_have_the_bits_of_the_interpreter(
    program: tuple[str, list[tuple[int, ...]]], machine: str
) -> None:
    text, shapes = program
    rng, dtype = np.random.default_rng(0), np.float64 if "f64" in text else np.float32
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    agree(verified(text, machine), arrays)
