# SPDX-License-Identifier: Apache-2.0
"""`fuse-attention`: what it recognises and what it leaves alone, on the host and on machines."""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sampling import sweep
from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute
from xdsl.utils.hints import isa

from penstock.dialects.context import PenstockContext
from penstock.dialects.graph import AttentionOp, ConcatOp, MatmulOp, SoftmaxOp, TransposeOp, tensor_of
from penstock.dialects.mem import scope_of
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.analysis.kernels import HOST, REMARK, device_of, kernels, partition
from penstock.runtime.compiler import import_program
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

sys.path.insert(0, "examples/networks")

Array = NDArray[Any]

SHAPES = {"q": [2, 3, 20, 8], "k": [2, 3, 24, 8], "v": [2, 3, 24, 4], "m": [2, 1, 1, 24], "n": [20, 24]}


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def model(
    *nodes: onnx.NodeProto, shapes: dict[str, list[int]] | None = None, outputs: str = "y", opset: int = 18
) -> onnx.ModelProto:
    known = SHAPES if shapes is None else shapes
    read = {name for each in nodes for name in each.input}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in known.items() if name in read
    ]
    constants = {"c": np.float32(0.25), "d": np.float32(4), "w": np.full((1, 1), 3, np.float32)}
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()]
    built = helper.make_graph(nodes, "g", inputs, results, initializers)
    return helper.make_model(built, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


TRANSPOSED = node("Transpose", "k", "t", perm=[0, 1, 3, 2])
SCORES = node("MatMul", "q t", "s")
SOFTMAX = node("Softmax", "s", "p", axis=-1)
PRODUCT = node("MatMul", "p v", "y")

ATTENTIONS = {
    "bare": (TRANSPOSED, SCORES, SOFTMAX, PRODUCT),
    "divided, then masked": (
        TRANSPOSED,
        node("MatMul", "q t", "a"),
        node("Div", "a d", "b"),
        node("Add", "b m", "s"),
        SOFTMAX,
        PRODUCT,
    ),
    "the mask first, and a mask of queries": (
        TRANSPOSED,
        node("MatMul", "q t", "a"),
        node("Mul", "c a", "b"),
        node("Add", "n b", "s"),
        SOFTMAX,
        PRODUCT,
    ),
    "factors scaled beforehand": (
        TRANSPOSED,
        node("Mul", "q c", "a"),
        node("Mul", "t c", "b"),
        node("MatMul", "a b", "s"),
        SOFTMAX,
        PRODUCT,
    ),
    "operations that do nothing in between": (
        TRANSPOSED,
        node("MatMul", "q t", "a"),
        node("Identity", "a", "b"),
        node("Cast", "b", "s", to=TensorProto.FLOAT),
        SOFTMAX,
        PRODUCT,
    ),
    "a result that is transposed": (
        TRANSPOSED,
        SCORES,
        SOFTMAX,
        node("MatMul", "p v", "x"),
        node("Transpose", "x", "y", perm=[2, 0, 1, 3]),
    ),
}

OTHERS = {
    "the weights are a result": model(TRANSPOSED, SCORES, SOFTMAX, PRODUCT, outputs="y p"),
    "the scores are a result": model(TRANSPOSED, SCORES, SOFTMAX, PRODUCT, outputs="y s"),
    "a softmax of columns": model(TRANSPOSED, SCORES, node("Softmax", "s", "p", axis=2), PRODUCT),
    "a scale after the mask": model(
        TRANSPOSED, node("MatMul", "q t", "a"), node("Add", "a m", "b"), node("Mul", "b c", "s"), SOFTMAX, PRODUCT
    ),
    "a tanh in between": model(TRANSPOSED, node("MatMul", "q t", "a"), node("Tanh", "a", "s"), SOFTMAX, PRODUCT),
    "one head of keys for all": model(
        TRANSPOSED, SCORES, SOFTMAX, PRODUCT, shapes={**SHAPES, "k": [2, 1, 24, 8], "v": [2, 1, 24, 4]}
    ),
}


def formed(of: onnx.ModelProto, options: str = "") -> tuple[PenstockContext, ModuleOp, ModuleOp]:
    """The module before and after the pass."""
    program = import_program(of, {})
    before = program.module.clone()
    run_passes(program.ctx, program.module, read_pipeline(f"fuse-attention{options}"))
    return program.ctx, before, program.module


def feeds(module: ModuleOp) -> list[Array]:
    main = next(op for op in module.ops if isinstance(op, FuncOp))
    shapes = [tensor_of(argument).get_shape() for argument in main.body.block.args]
    return [np.random.default_rng([n]).standard_normal(shape).astype(np.float32) for n, shape in enumerate(shapes)]


def names_of(module: ModuleOp) -> list[str]:
    return [op.name for op in module.walk() if op.name.startswith("graph.") and op.name != "graph.constant"]


def graph_values(ctx: PenstockContext, module: ModuleOp) -> list[Array]:
    main = next(op for op in module.ops if isinstance(op, FuncOp))
    return run_graph(main, feeds(module), ctx.weights)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_it_forms_one_op_with_the_same_value(name: str) -> None:
    ctx, before, after = formed(model(*ATTENTIONS[name]))
    assert names_of(after) == ["graph.attention"]
    np.testing.assert_allclose(graph_values(ctx, after)[0], graph_values(ctx, before)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_it_leaves_what_is_no_attention(name: str) -> None:
    _, _, after = formed(OTHERS[name])
    assert "graph.softmax" in names_of(after)
    assert "graph.attention" not in names_of(after)


def test_the_numbers_in_front_become_one_scale() -> None:
    _, _, after = formed(model(*ATTENTIONS["factors scaled beforehand"]))
    op = next(op for op in after.walk() if isinstance(op, AttentionOp))
    assert op.scale.value.data == 0.0625


def test_it_recognises_attention_as_onnx_expands_it() -> None:
    shapes = {"q": [2, 20, 24], "k": [2, 28, 24], "v": [2, 28, 24], "n": [20, 28]}
    attention = node("Attention", "q k v n", "y", q_num_heads=3, kv_num_heads=3)
    program = import_program(model(attention, shapes=shapes, opset=23), {})
    before = program.module.clone()
    run_passes(program.ctx, program.module, read_pipeline("fold-constants,fuse-attention"))
    (op,) = [op for op in program.module.walk() if isinstance(op, AttentionOp)]
    assert not [op for op in program.module.walk() if isinstance(op, SoftmaxOp | MatmulOp)]
    assert op.mask is not None
    arrays = feeds(before)
    arrays[3][4] = -np.inf
    arrays[3][5, :3] = -np.inf
    found, expected = (
        run_graph(next(op for op in each.ops if isinstance(op, FuncOp)), arrays, program.ctx.weights)[0]
        for each in (program.module, before)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_blocks_are_written_into_the_op() -> None:
    _, _, after = formed(model(*ATTENTIONS["bare"]), "{blocks=16,8}")
    op = next(op for op in after.walk() if isinstance(op, AttentionOp))
    assert op.blocks is not None
    assert list(op.blocks.get_values()) == [16, 8]


# machines


def compiled(
    of: onnx.ModelProto, machine: str | None, until: str, options: str = ""
) -> tuple[PenstockContext, ModuleOp]:
    program = import_program(of, {})
    if machine is not None:
        attach_machine(program.module, machine)
    specs = [spec for spec in pipeline(until, machine) if spec not in ("fuse-attention", "combine-matmuls")]
    run_passes(program.ctx, program.module, read_pipeline(",".join([f"fuse-attention{options}", *specs])))
    return program.ctx, program.module


def tiled(module: ModuleOp) -> list[FuncOp]:
    """The kernels of attentions: those with loops, a maximum and an exponential."""
    return [
        kernel
        for kernel in kernels(module)
        if {"arith.maximumf", "math.exp"} <= {op.name for op in kernel.walk()}
        and any(isinstance(op, scf.ForOp) for op in kernel.walk())
    ]


ON_MACHINE = model(*ATTENTIONS["divided, then masked"])


@pytest.mark.parametrize("machine", ["rapid-core-like", "neural-cluster"])
def test_every_op_of_its_kernel_is_an_intrinsic_of_the_machine(machine: str) -> None:
    _, module = compiled(ON_MACHINE, machine, "loop", "{blocks=8,8}")
    (kernel,) = tiled(module)
    assert device_of(kernel) == machine.replace("-", "_")
    generics = [op for op in kernel.walk() if isinstance(op, GenericOp)]
    assert len(generics) > 20
    assert all(op.library_call is not None for op in generics)
    assert not [op for op in kernel.walk() if isinstance(op, memref.AllocOp)]


@pytest.mark.parametrize(
    ("machine", "options"),
    sweep(
        list(product(["rapid-core-like", "neural-cluster"], ["", "{blocks=8,7}"])),
        [("rapid-core-like", ""), ("neural-cluster", "{blocks=8,7}")],
    ),
)
def test_a_machine_computes_what_the_host_does(machine: str, options: str) -> None:
    ctx, before, _ = formed(ON_MACHINE)
    expected = graph_values(ctx, before)[0]
    arrays = feeds(before)
    arrays[3][..., 3] = -np.inf
    expected = run_graph(next(op for op in before.ops if isinstance(op, FuncOp)), arrays, ctx.weights)[0]
    ctx, module = compiled(ON_MACHINE, machine, "accel", options)
    (result,) = run_module(module, arrays, ctx.weights)
    assert np.abs(result - expected).max() < 4e-3 * np.abs(expected).max()


def test_no_score_leaves_the_chip() -> None:
    length = 128
    shapes = {name: [1, 2, length, 32] for name in "qkv"}
    of = model(*ATTENTIONS["bare"], shapes=shapes)
    moved: list[int] = []
    for options in ("", '{device="host"}'):
        _, module = compiled(of, "rapid-core-like", "accel", options)
        moved.append(traffic(module).bytes_out)
        shapes_off_chip = [
            type.get_shape()
            for op in module.walk()
            for value in op.results
            if isa(type := value.type, MemRefType[Attribute]) and scope_of(type) is None
        ]
        assert not any(list(shape[-2:]) == [length, length] for shape in shapes_off_chip)
    program = import_program(of, {})
    attach_machine(program.module, "rapid-core-like")
    # Kept between kernels, scores as short as these would not leave the chip either.
    without = ("fuse-attention", "mem-promote")
    specs = [spec for spec in pipeline("accel", "rapid-core-like") if spec not in without]
    run_passes(program.ctx, program.module, read_pipeline(",".join(specs)))
    # The scores of both heads, in f32 before the softmax and in f16 after it, at least once each.
    assert traffic(program.module).bytes_out >= moved[0] + 2 * length * length * 4


def test_a_mask_of_keys_becomes_an_element_of_each_key() -> None:
    program = import_program(ON_MACHINE, {})
    attach_machine(program.module, "rapid-core-like")
    run_passes(program.ctx, program.module, read_pipeline("fuse-attention"))
    (op,) = [op for op in program.module.walk() if isinstance(op, AttentionOp)]
    assert op.mask is None
    assert isinstance(op.k.owner, ConcatOp)
    assert op.blocks is not None
    assert [op for op in program.module.walk() if isinstance(op, TransposeOp)]


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("gemmini-fp32", "bare"),
        ("neural-accelerator", "bare"),
        ("rapid-core-like", "the mask first, and a mask of queries"),
    ],
)
def test_what_a_machine_cannot_compute_as_a_whole_is_left_as_it_is(machine: str, name: str) -> None:
    program = import_program(model(*ATTENTIONS[name]), {})
    attach_machine(program.module, machine)
    run_passes(program.ctx, program.module, read_pipeline("fuse-attention"))
    assert "graph.softmax" in names_of(program.module)


def test_an_attention_for_the_host_stays_there_with_a_remark() -> None:
    _, module = compiled(model(*ATTENTIONS["bare"]), "gemmini-fp32", "tensor", '{device="host"}')
    (kernel,) = tiled(module)
    assert device_of(kernel) == HOST
    assert "no intrinsic" in str(kernel.attributes[REMARK]) or "@" in str(kernel.attributes[REMARK])
    (placement,) = partition(module)
    assert placement.macs == 2 * 3 * 20 * 24 * (8 + 4)
