# SPDX-License-Identifier: Apache-2.0
"""What is copied, overwritten or computed again: the bits of the plain program, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import needs_compiler
from numpy.typing import NDArray
from programs import parsed_in_context
from sampling import examples
from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import ModuleOp, UnitAttr

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import EXPLICIT, memref_of
from penstock.passes.analysis.memory.memory_problems import ARENA, memory_problems, plan_report
from penstock.passes.graph.remat import GraphRematPass
from penstock.passes.planning.problem import peak
from penstock.passes.planning.remat import RematOp, RematProblem, least_limit, least_work, peak_of
from penstock.runtime.compiler import passes_for
from penstock.runtime.interpreter import run_module
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import run_passes

Array = NDArray[Any]
ROWS = 4
CHOICES = "-copy-parts, -overwrite-operands"


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """
    Elementwise ops, softmaxes, sums, products, slices and concatenations of matrices of four rows, as text; or of one
    row, where the parts of a concatenation are runs of its bytes.
    """
    rows = draw(st.sampled_from([1, ROWS]))
    widths = [draw(st.sampled_from([8, 16, 32]))]
    lines: list[str] = []

    def type_of(width: int) -> str:
        return f"tensor<{rows}x{width}xf32>"

    def append(text: str, width: int) -> None:
        lines.append(f"%v{len(widths)} = {text}")
        widths.append(width)

    for _ in range(draw(st.integers(2, 10))):
        one = draw(st.integers(max(0, len(widths) - 4), len(widths) - 1))
        width, name = widths[one], f"%v{one}"
        held = type_of(width)
        kind = draw(st.sampled_from(["exp", "softmax", "add", "matmul", "concat", "concat", "slice", "reduce"]))
        equal = [number for number, each in enumerate(widths) if each == width]
        if kind == "exp":
            append(f"graph.tanh {name} : {held}", width)
        elif kind == "softmax":
            axis = draw(st.integers(0, 1))
            append(f"graph.softmax {name} axis {axis} : {held} -> {held}", width)
        elif kind == "add":
            append(f"graph.add {name}, %v{draw(st.sampled_from(equal))} : ({held}, {held}) -> {held}", width)
        elif kind == "reduce":
            append(f"graph.reduce_max {name} axes [1] : {held} -> {type_of(1)}", 1)
        elif kind == "matmul":
            made = draw(st.sampled_from([8, 16, 64]))
            filters = f"tensor<{width}x{made}xf32>"
            data = np.random.default_rng(draw(st.integers(0, 99))).integers(-3, 4, (width, made)).astype(np.float32)
            lines.append(f"%w{len(lines)} = graph.constant dense<{data.tolist()}> : {filters}")
            append(f"graph.matmul {name}, %w{len(lines) - 1} : ({held}, {filters}) -> {type_of(made)}", made)
        elif kind == "slice" and width > 1:
            start = draw(st.integers(0, width - 1))
            size = draw(st.integers(1, width - start))
            taken = f"starts [0, {start}] sizes [{rows}, {size}] steps [1, 1]"
            append(f"graph.slice {name} {taken} : {held} -> {type_of(size)}", size)
        elif kind == "concat":
            parts = [one, *draw(st.lists(st.integers(0, len(widths) - 1), min_size=1, max_size=2))]
            operands, types = (
                ", ".join(f"%v{each}" for each in parts),
                ", ".join(type_of(widths[each]) for each in parts),
            )
            total = sum(widths[each] for each in parts)
            append(f"graph.concat {operands} axis 1 : ({types}) -> {type_of(total)}", total)
    results = sorted({len(widths) - 1, draw(st.integers(0, len(widths) - 1))})
    types = ", ".join(type_of(widths[each]) for each in results)
    values = ", ".join(f"%v{each}" for each in results)
    return "\n  ".join(
        [f"func.func @main(%v0: {type_of(widths[0])}) -> ({types}) {{", *lines, f"func.return {values} : {types}\n}}"]
    )


def lowered(text: str, pipeline: str) -> tuple[int, int, list[Array]]:
    """The bytes alive at once, those of the arena, and what the interpreter makes of it, which poisons dead bytes."""
    ctx, module = parsed_in_context(text)
    run_passes(ctx, module, passes_for(module, "loop", "native", pipeline))
    alive = sum(peak(each.problem)[1] for each in memory_problems(module) if each.scope is None)
    arena = sum(plan.peak for plan in plan_report(module) if plan.scope == ARENA)
    return alive, arena, run(module, ctx)


def image_of(module: ModuleOp) -> Array:
    (main,) = (op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
    shape = memref_of(main.body.block.args[0]).get_shape()
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def run(module: ModuleOp, ctx: PenstockContext) -> list[Array]:
    return run_module(module, [image_of(module)], ctx.weights, ordered=True)


def assert_equal(found: list[Array], expected: list[Array]) -> None:
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@given(graphs())
@examples(60)
def test_what_is_copied_or_overwritten_keeps_the_bits_and_takes_no_more(text: str) -> None:
    before, _, expected = lowered(text, f"default, {CHOICES}")
    after, _, found = lowered(text, "default")
    assert_equal(found, expected)
    assert after <= before


@given(graphs())
@examples(16)
def test_what_is_overwritten_is_the_same_in_c(text: str) -> None:
    """Where C says that operands do not overlap, they do not."""
    needs_compiler()
    ctx, module = parsed_in_context(text)
    run_passes(ctx, module, passes_for(module, "loop", "native", "default"))
    native = load_native(module)
    weights = [ctx.weights[each.name] for each in native.interface.weights]
    assert_equal(native.run([image_of(module)], weights), run(module, ctx))


@given(graphs(), st.data())
@examples(40)
def test_any_choice_of_copies_keeps_the_bits(text: str, data: st.DataObject) -> None:
    """Insertions are marked at random, as a person would."""
    _, _, expected = lowered(text, f"default, {CHOICES}")
    ctx, module = parsed_in_context(text)
    passes = passes_for(module, "loop", "native", "default, -copy-parts")
    at = [each.name for each in passes].index("tensor-to-loop")
    run_passes(ctx, module, passes[:at])
    for op in module.walk():
        if isinstance(op, tensor.InsertSliceOp) and data.draw(st.booleans()):
            op.attributes[EXPLICIT] = UnitAttr()
    run_passes(ctx, module, passes[at:])
    assert_equal(run(module, ctx), expected)


@given(graphs(), st.integers(30, 95))
@examples(60)
def test_what_is_computed_again_has_the_bits_of_what_was_kept(text: str, share: int) -> None:
    before, _, expected = lowered(text, f"default, {CHOICES}")
    try:
        _, _, found = lowered(text, f"default, +graph-remat{{limit={before * share // 100}}} after graph-fuse")
    except UserError:
        return  # a limit that is not met
    assert_equal(found, expected)


def test_what_is_computed_again_first_inside_another_op_is_there_for_others() -> None:
    """The sum is computed inside both ops that read it, and one of them is what the program returns a view of."""
    text = """
    func.func @main(%x: tensor<4x16xf32>) -> (tensor<4x16xf32>, tensor<4x5xf32>) {
      %s = graph.add %x, %x : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
      %t = graph.tanh %s : tensor<4x16xf32>
      %a = graph.add %t, %x : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
      %b = graph.add %a, %s : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
      %c = graph.slice %b starts [0, 4] sizes [4, 5] steps [1, 1] : tensor<4x16xf32> -> tensor<4x5xf32>
      func.return %a, %c : tensor<4x16xf32>, tensor<4x5xf32>
    }
    """
    _, _, expected = lowered(text, f"default, {CHOICES}")
    _, _, found = lowered(text, "default, +graph-remat{limit=0} after graph-fuse")
    assert_equal(found, expected)


def test_what_is_computed_again_several_times_of_the_same_stays_so() -> None:
    """No later pass takes two of the executions for one."""
    narrow, wide, back = "tensor<64x64xf32>", "tensor<64x128xf32>", "tensor<128x64xf32>"
    lines, given = [f"%a = graph.softmax %x axis 1 : {narrow} -> {narrow}"], "a"
    for name in "bcd":
        lines += [
            f"%{name}0 = graph.matmul %{given}, %w : ({narrow}, {wide}) -> {wide}",
            f"%{name}1 = graph.softmax %{name}0 axis 1 : {wide} -> {wide}",
            f"%{name}2 = graph.softmax %{name}1 axis 0 : {wide} -> {wide}",
            f"%{name}3 = graph.matmul %{name}2, %v : ({wide}, {back}) -> {narrow}",
            f"%{name} = graph.matmul %{name}3, %a : ({narrow}, {narrow}) -> {narrow}",
        ]
        given = name
    head = f"func.func @main(%x: {narrow}, %w: {wide}, %v: {back}) -> {narrow} {{"
    ctx, module = parsed_in_context("\n".join([head, *lines, f"func.return %d : {narrow}\n}}"]))
    passes = passes_for(module, "tensor", "native", "default, +graph-remat{limit=81920} after graph-fuse")
    at = [each.name for each in passes].index("graph-remat") + 1
    run_passes(ctx, module, passes[:at])
    before = explicit_ops(module)
    run_passes(ctx, module, passes[at:])
    assert explicit_ops(module) == before > 1


def explicit_ops(module: ModuleOp) -> int:
    return sum(EXPLICIT in op.attributes for op in module.walk())


# the planner


@st.composite
def remat_problems(draw: st.DrawFn, most: int = 8) -> RematProblem:
    """Ops of one result each, on results of earlier ones; the last is the result."""
    count = draw(st.integers(3, most))
    ops: list[RematOp] = []
    for number in range(count):
        reads = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else []
        if number and number - 1 not in reads and draw(st.booleans()):
            reads.append(number - 1)
        is_last = number == count - 1
        ops.append(RematOp(tuple(reads), (number,), draw(st.integers(1, 9)), can_repeat=not is_last, is_result=is_last))
    return RematProblem(tuple(draw(st.integers(1, 9)) for _ in ops), tuple(ops))


@given(remat_problems())
@examples(200)
def test_a_schedule_keeps_its_limit(problem: RematProblem) -> None:
    whole = peak_of(problem, problem.given)
    least = least_limit(problem)
    assert problem.bound <= least <= whole
    for limit in range(least, whole + 1):
        found = least_work(problem, limit)
        if found is not None:
            assert peak_of(problem, found) <= limit
    assert least_work(problem, problem.bound - 1) is None


def test_a_chain_is_computed_again_from_a_checkpoint() -> None:
    """Forward 0 to 5, and backward 6 to 11, each of which reads what the forward step made."""
    ops = [RematOp((number - 1,) if number else (), (number,), 1) for number in range(6)]
    for number in range(6, 12):
        ops.append(RematOp((11 - number, number - 1), (number,), 1, is_result=number == 11))
    problem = RematProblem((1,) * 12, tuple(ops))
    assert peak_of(problem, problem.given) == 7
    found = least_work(problem, 5)
    assert found is not None
    assert peak_of(problem, found) <= 5
    assert problem.work(found) <= 15


@pytest.mark.parametrize("limit", [2047, 0])
def test_a_limit_that_cannot_be_met_is_an_error_with_the_least(limit: int) -> None:
    text = """
    func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
      %a = graph.exp %x : tensor<4x64xf32>
      %b = graph.softmax %a axis 1 : tensor<4x64xf32> -> tensor<4x64xf32>
      %c = graph.softmax %b axis 0 : tensor<4x64xf32> -> tensor<4x64xf32>
      %d = graph.mul %c, %a : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
      func.return %d : tensor<4x64xf32>
    }
    """
    ctx, module = parsed_in_context(text)
    with pytest.raises(UserError) as fault:
        GraphRematPass(limit).apply(ctx, module)
    assert "do not fit" in fault.value.message
    assert "2,048" in "".join(fault.value.notes)
