# SPDX-License-Identifier: Apache-2.0
"""Weights of 2 and 4 bits stay packed from the model to the C, and are the same numbers at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from contrib_cases import Array, Draw
from hypothesis import given
from hypothesis import strategies as st
from one_node import LEVELS, run_at
from onnx import ModelProto, TensorProto, helper
from sampling import examples, sweep

import penstock
from penstock.dialects.element_bits import NARROW, packed_bytes, unpacked_bytes
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.packing import common_sizes
from penstock.runtime.compiler import LoadedProgram, compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.signature import signature_of

TYPES: dict[str, int] = {
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int2": TensorProto.INT2,
    "uint2": TensorProto.UINT2,
}
OPSET = 25
"""The first that dequantises elements of 2 bits."""


def integers(draw: Draw, name: str, *shape: int) -> Array:
    info = ml_dtypes.iinfo(getattr(ml_dtypes, name))
    return draw.integers(int(info.min), int(info.max), *shape).astype(getattr(ml_dtypes, name))


def tensor_of(name: str, array: Array) -> TensorProto:
    kind = next((kind for word, kind in TYPES.items() if array.dtype == np.dtype(getattr(ml_dtypes, word))), None)
    if kind is None:
        return helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.ravel())
    return helper.make_tensor(name, kind, array.shape, array.astype(np.int8).ravel())


def random_model(draw: Draw, name: str) -> tuple[ModelProto, Array, Array]:
    """x W for weights W that are dequantised: the model, x, and W in double precision, exact."""
    rows, columns = draw.one_of(4, 6, 8, 16), draw.one_of(1, 2, 4, 6, 8, 7)
    weights = integers(draw, name, rows, columns)
    kind, axis = draw.one_of("all", "axis", "blocks"), draw.one_of(0, 1)
    attributes: dict[str, Any] = {"axis": axis}
    shape = {"all": list[int](), "axis": [weights.shape[axis]], "blocks": list(weights.shape)}[kind]
    block = draw.one_of(2, 3, 4)
    if kind == "blocks":
        attributes["block_size"] = block
        shape[axis] = -(-shape[axis] // block)

    def spread(numbers: Array) -> Array:
        if kind == "blocks":
            return np.repeat(numbers, block, axis).take(range(weights.shape[axis]), axis)
        return numbers if kind == "all" else numbers.reshape([-1, 1] if axis == 0 else [1, -1])

    # Powers of two, and small integers for x: sums are exact whatever their order.
    scale = np.exp2(draw.integers(-3, 3, *shape)).astype(np.float32)
    zero = integers(draw, name, *shape) if draw.flip() else None
    constants = {"w": weights, "scale": scale} | ({} if zero is None else {"zero": zero})
    nodes = [
        helper.make_node("DequantizeLinear", list(constants), ["real"], "dequantise", **attributes),
        helper.make_node("MatMul", ["x", "real"], ["y"], "product"),
    ]
    graph = helper.make_graph(
        nodes,
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, columns])],
        [tensor_of(each, array) for each, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)
    centred = weights.astype(np.float64) - (0 if zero is None else spread(zero.astype(np.float64)))
    return model, draw.integers(-4, 4, 2, rows).astype(np.float32), centred * spread(scale.astype(np.float64))


@pytest.mark.parametrize(
    ("name", "seed"),
    sweep([(name, seed) for name in TYPES for seed in range(40)], lambda each: each[1] < 3),
)
def test_weights_are_unpacked_to_the_same_numbers_at_every_level(name: str, seed: int) -> None:
    model, x, weights = random_model(Draw(np.random.default_rng(seed)), name)
    for level, (y,) in run_at(model, [x], LEVELS):
        np.testing.assert_array_equal(y, x @ weights, err_msg=level)


def bytes_of_weights(program: LoadedProgram) -> int:
    """The bytes of the weights that the compiled program takes."""
    return sum(program.ctx.weights[name].nbytes for name in signature_of(program.module).weights)


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
def test_a_program_takes_half_a_byte_for_a_weight_of_4_bits(machine: str | None) -> None:
    draw = Draw(np.random.default_rng(0))
    weights = integers(draw, "int4", 64, 32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["real"], "dequantise", axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "real"], ["y"], "product"),
    ]
    scale = np.exp2(draw.integers(-3, 3, 4, 32)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32])],
        [tensor_of("w", weights), tensor_of("scale", scale)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)
    x = draw.integers(-4, 4, 2, 64).astype(np.float32)
    (y,) = penstock.compile(model, machine=machine)(x)
    np.testing.assert_array_equal(y, x @ (weights.astype(np.float32) * np.repeat(scale, 16, 0)))
    program = import_program(model, {}, name="packed")
    compile_module(program.module, program.ctx, machine, "accel" if machine else "loop")
    assert bytes_of_weights(program) == 64 * 32 // 2 + scale.nbytes


def test_a_graph_that_is_compiled_in_two_steps_stays_packed() -> None:
    model, x, weights = random_model(Draw(np.random.default_rng(1)), "uint4")
    program = import_program(model, {}, name="packed")
    signature = signature_of(program.module)
    for _ in range(2):
        compile_module(program.module, program.ctx, None, "graph")
    assert 'graph.weight<"w/packed' in str(program.module)
    compile_module(program.module, program.ctx, None, "loop")
    engine = Engine(program.module, program.ctx, signature, "interpreter")
    np.testing.assert_array_equal(engine(x)[0], x @ weights)


@pytest.mark.parametrize("name", TYPES)
def test_a_weights_file_holds_them_packed(name: str, tmp_path: Path) -> None:
    array = integers(Draw(np.random.default_rng(0)), name, 3, 1024)
    store = WeightStore()
    store.add("whole", array)
    store.add("ragged", array[:, :7])
    store.save(tmp_path / "a.safetensors")
    found = WeightStore.open(tmp_path / "a.safetensors")
    found.save(tmp_path / "b.safetensors")
    size = (tmp_path / "a.safetensors").stat().st_size
    assert size < array.size * (4 if "4" in name else 2) // 8 + 512
    for path in ("a.safetensors", "b.safetensors"):
        again = WeightStore.open(tmp_path / path)
        for key, expected in (("whole", array), ("ragged", array[:, :7])):
            assert again.shape_dtype(key) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(again[key], expected)


@given(st.sampled_from(sorted(NARROW)), st.lists(st.integers(0, 3), max_size=2), st.integers(0, 5), st.integers(0, 99))
@examples(60)
def test_bytes_hold_what_was_packed(kind: tuple[int, bool], rows: list[int], count: int, seed: int) -> None:
    each = 8 // kind[0]
    bits = np.random.default_rng(seed).integers(0, 1 << kind[0], (*rows, count, each)).astype(NARROW[kind[0], True])
    array = bits.view(NARROW[kind])
    packed = packed_bytes(array)
    assert packed.dtype == (np.uint8 if kind[1] else np.int8)
    np.testing.assert_array_equal(unpacked_bytes(packed, NARROW[kind]), array.reshape(*rows, count * each))


@given(st.lists(st.integers(1, 6), max_size=5), st.randoms(use_true_random=False))
@examples(100)
def test_common_sizes_are_those_of_both_shapes(sizes: list[int], random: Any) -> None:
    def grouped() -> tuple[list[int], list[list[int]]]:
        shape, groups = [1], list[list[int]]([[]])
        for size in sizes:
            if random.random() < 0.5:
                shape.append(1)
                groups.append([])
            shape[-1] *= size
            groups[-1].append(size)
        return shape, groups

    (left, _), (right, _) = grouped(), grouped()
    found = common_sizes(left, right)
    if found is None:
        return
    flat = [size for group in found for size in group]
    assert [int(np.prod(group)) for group in found] == right
    back = common_sizes(flat, left)
    assert back is not None
    assert [size for group in back for size in group] == flat
