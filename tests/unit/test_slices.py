# SPDX-License-Identifier: Apache-2.0
"""A slice outside groups is a view from the tensor level on: no kernel, no copy, and strided operands below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import tensor
from xdsl.dialects.builtin import MemRefType, ModuleOp, TensorType, f16, f32
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.accel import DmaOp
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.mem import BufferOp, CopyOp, static_strides
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_c import emit_c
from penstock.passes.analysis.kernels import kernels, partition, share_on_machine
from penstock.runtime.compiler import compile_module
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]
Op = TypeVar("Op", bound=Operation)


def integers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def parsed(body: str, arguments: str, results: str) -> tuple[PenstockContext, ModuleOp]:
    text = f"func.func @main({arguments}) -> ({results}) {{\n{body}\nfunc.return %y : {results}\n}}"
    ctx = make_context()
    return ctx, parse_text(ctx, SourceText("slices.mlir", text)).module


def lowered(
    body: str, arguments: str, results: str, inputs: Sequence[Array], machine: str | None = None
) -> tuple[PenstockContext, ModuleOp]:
    """The program at its lowest level, where the interpreter and C find the bits of the graph level."""
    ctx, module = parsed(body, arguments, results)
    expected = run_graph(module, inputs, ctx.weights)
    compile_module(module, ctx, machine, "accel" if machine else "loop")
    for found in (run_module(module, inputs, ctx.weights), Engine(module, ctx).run(inputs)):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    return ctx, module


def in_main(module: ModuleOp, kind: type[Op]) -> list[Op]:
    (main,) = (op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main")
    return [op for op in main.walk() if isinstance(op, kind)]


def cut(result: str, of: str, start: int, size: int, width: int, rows: int = 4) -> str:
    """Columns of a matrix."""
    types = f"tensor<{rows}x{width}xf32> -> tensor<{rows}x{size}xf32>"
    return f"%{result} = graph.slice %{of} starts [0, {start}] sizes [{rows}, {size}] steps [1, 1] : {types}\n"


def binary(op: str, result: str, left: str, right: str, type: str) -> str:
    return f"%{result} = graph.{op} %{left}, %{right} : ({type}, {type}) -> {type}\n"


W, N = "tensor<4x12xf32>", "tensor<4x6xf32>"


def test_halves_of_a_matrix_meet_in_one_kernel_that_reads_both_where_they_are() -> None:
    body = cut("a", "x", 0, 6, 12) + cut("b", "x", 6, 6, 12) + binary("sub", "y", "a", "b", N)
    _, module = lowered(body, f"%x: {W}", N, [integers(4, 12)])
    (call,) = in_main(module, CallOp)
    views = [operand.type for operand in call.operands[:2]]
    assert all(isa(view, MemRefType) and static_strides(view) == (12, 1) for view in views)
    assert not in_main(module, CopyOp)
    assert not in_main(module, BufferOp)


def test_a_kernel_of_slices_and_of_whole_tensors_becomes_two_and_of_equal_strides_one() -> None:
    column = "tensor<4x1xf32>"

    def largest(result: str, of: str) -> str:
        return f"%{result} = graph.reduce_max %{of} axes [1] keepdims true : {N} -> {column}\n"

    parts = cut("a", "x", 0, 6, 12) + cut("b", "x", 6, 6, 12)
    body = parts + largest("c", "a") + largest("d", "b") + largest("e", "z")
    join = f"%y = graph.concat %c, %d, %e axis 0 : ({column}, {column}, {column}) -> tensor<12x1xf32>"
    _, module = lowered(body + join, f"%x: {W}, %z: {N}", "tensor<12x1xf32>", [integers(4, 12), integers(4, 6)])
    callees = [call.callee.string_value() for call in in_main(module, CallOp)]
    assert callees[0] == callees[1] != callees[2]
    assert not in_main(module, CopyOp)


def test_a_slice_that_is_a_result_is_copied_once_and_computed_where_it_is_cut_from() -> None:
    body = f"%r = graph.relu %x : {W}\n" + cut("y", "r", 3, 6, 12)
    _, module = lowered(body, f"%x: {W}", N, [integers(4, 12)])
    assert len(in_main(module, CallOp)) == len(in_main(module, CopyOp)) == 1


def test_a_slice_of_an_input_is_concatenated_by_a_copy_of_its_elements_alone() -> None:
    body = cut("a", "x", 3, 6, 12) + f"%n = graph.neg %z : {N}\n"
    join = f"%y = graph.concat %a, %n, %a axis 1 : ({N}, {N}, {N}) -> tensor<4x18xf32>"
    _, module = lowered(body + join, f"%x: {W}, %z: {N}", "tensor<4x18xf32>", [integers(4, 12), integers(4, 6)])
    assert [copy.source_type.get_shape() for copy in in_main(module, CopyOp)] == [(4, 6), (4, 6)]


def test_a_reshape_that_strides_cannot_express_takes_a_copy_and_one_that_they_can_takes_none() -> None:
    for shape, copies in (("2x2x6", 0), ("24", 1)):
        type = f"tensor<{shape}xf32>"
        body = cut("a", "x", 3, 6, 12) + f"%r = graph.reshape %a : {N} -> {type}\n%y = graph.neg %r : {type}"
        _, module = lowered(body, f"%x: {W}", type, [integers(4, 12)])
        assert len(in_main(module, CopyOp)) == copies


def test_a_slice_of_a_slice_of_a_concatenation_reads_what_was_computed_into_it() -> None:
    T = "tensor<2x4x6xf32>"
    body = f"%a = graph.reduce_max %z axes [0] keepdims false : {T} -> {N}\n"
    body += f"%b = graph.reduce_min %z axes [0] keepdims false : {T} -> {N}\n"
    body += f"%c = graph.concat %a, %b axis 1 : ({N}, {N}) -> {W}\n"
    body += cut("d", "c", 2, 8, 12) + cut("e", "d", 1, 6, 8) + binary("add", "y", "e", "x", N)
    _, module = lowered(body, f"%z: {T}, %x: {N}", N, [integers(2, 4, 6), integers(4, 6)])
    assert len(in_main(module, CallOp)) == 3
    assert not in_main(module, CopyOp)


def test_the_buffer_behind_a_slice_is_kept_until_the_slice_was_read() -> None:
    # `r` is cut at once and read at the end; what is computed in between must not take its bytes.
    body = f"%r = graph.relu %x : {W}\n" + cut("a", "r", 3, 6, 12)
    steps = [f"%s{n + 1} = graph.softmax %s{n} axis 1 : {N} -> {N}\n" for n in range(3)]
    body += f"%s0 = graph.neg %z : {N}\n" + "".join(steps)
    body += f"%f = graph.floor %s3 : {N}\n" + binary("add", "y", "a", "f", N)
    ctx, module = parsed(body, f"%x: {W}, %z: {N}", N)
    compile_module(module, ctx, None, "loop")
    x, z = integers(4, 12), integers(4, 6)
    (found,) = run_module(module, [x, z], ctx.weights)  # the interpreter refuses bytes that another buffer took
    np.testing.assert_array_equal(found, np.maximum(x, 0)[:, 3:9])


def test_a_slice_between_what_one_kernel_computes_is_a_view_there() -> None:
    body = f"%r = graph.relu %x : {W}\n" + cut("a", "r", 3, 6, 12) + binary("sub", "y", "a", "z", N)
    _, module = lowered(body, f"%x: {W}, %z: {N}", N, [integers(4, 12), integers(4, 6)])
    (call,) = in_main(module, CallOp)
    assert [str(type) for type in call.operand_types] == [
        str(MemRefType(f32, shape)) for shape in ((4, 12), (4, 6), (4, 6))
    ]
    assert not any(isinstance(op, CopyOp) for op in module.walk())


def test_restrict_leaves_out_slices_of_one_buffer_and_stays_on_what_is_written() -> None:
    body = cut("a", "x", 0, 6, 12) + cut("b", "x", 6, 6, 12) + binary("sub", "y", "a", "b", N)
    ctx, module = parsed(body, f"%x: {W}", N)
    compile_module(module, ctx, None, "loop")
    (kernel,) = emit_c(module).kernels
    arguments = kernel.prototype.split("(")[-1].split(",")[1:]
    assert ["restrict" in argument for argument in arguments] == [False, False, True]


def test_a_machine_loads_rows_of_a_slice_from_where_they_are() -> None:
    body = cut("a", "x", 20, 40, 80, 32) + "%y = graph.matmul %a, %w"
    body += " : (tensor<32x40xf32>, tensor<40x24xf32>) -> tensor<32x24xf32>"
    arguments = "%x: tensor<32x80xf32>, %w: tensor<40x24xf32>"
    inputs = [integers(32, 80), integers(40, 24)]
    _, module = lowered(body, arguments, "tensor<32x24xf32>", inputs, "gemmini-fp32")
    assert share_on_machine(partition(module)) == 1.0
    # What its tiles read again may be filled into a scope before.
    called = {call.callee.string_value() for call in in_main(module, CallOp)} - {"fill"}
    assert len(called) == 1
    assert not in_main(module, CopyOp)
    (kernel,) = [each for each in kernels(module) if each.sym_name.data in called]
    loads = [op for op in kernel.walk() if isinstance(op, DmaOp) and 80 in static_strides(op.source_type)]
    assert loads


def test_a_slice_between_kernels_is_stored_as_they_are() -> None:
    body = f"%r = graph.softmax %x axis 1 : {W} -> {W}\n" + cut("a", "r", 3, 6, 12) + f"%y = graph.tanh %a : {N}"
    ctx, module = parsed(body, f"%x: {W}", N)
    run_passes(ctx, module, read_pipeline('graph-fuse,storage-type{type="f16"}'))
    (view,) = in_main(module, graph.SliceOp)
    assert isa(view.result.type, TensorType[Attribute])
    assert view.result.type.element_type == f16


def test_slices_at_the_tensor_level_are_views_in_main() -> None:
    body = "%y = graph.slice %x starts [1, 9] sizes [2, 1] steps [2, -3] : tensor<4x12xf32> -> tensor<2x1xf32>"
    ctx, module = parsed(body, f"%x: {W}", "tensor<2x1xf32>")
    run_passes(ctx, module, read_pipeline("graph-to-tensor"))
    # A column picks single elements apart.
    assert not in_main(module, tensor.ExtractSliceOp)
    body = "%y = graph.slice %x starts [1, 9] sizes [2, 3] steps [2, 1] : tensor<4x12xf32> -> tensor<2x3xf32>"
    ctx, module = parsed(body, f"%x: {W}", "tensor<2x3xf32>")
    run_passes(ctx, module, read_pipeline("graph-to-tensor"))
    (view,) = in_main(module, tensor.ExtractSliceOp)
    lists = (view.static_offsets, view.static_sizes, view.static_strides)
    assert [list(each.get_values()) for each in lists] == [[1, 9], [2, 3], [2, 1]]
