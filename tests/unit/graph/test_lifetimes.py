# SPDX-License-Identifier: Apache-2.0
"""What a graph keeps in memory: buffers and their lifetimes, tensors and their accesses."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import zoo
from benchmarks.lifetimes import Lifetimes, lifetimes, on_chip_problem
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.values import is_constant, is_view
from penstock.passes.planning.on_chip.problem import Tensor, TensorAccess
from penstock.passes.planning.on_chip.registry import decide
from penstock.passes.planning.problem import Problem, lower_bound, peak
from penstock.passes.planning.registry import solve
from penstock.runtime.compiler import import_program
from penstock.runtime.signature import main_function

Make = Callable[..., Any]

RESIDUAL = """
func.func @main(%x: tensor<4x6xf32>) -> tensor<24xf32> {
  %w = graph.constant #graph.weight<"w"> : tensor<6x6xf32>
  %a = graph.matmul %x, %w : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
  %b = graph.relu %a : tensor<4x6xf32>
  %v = graph.reshape %b : tensor<4x6xf32> -> tensor<24xf32>
  %c = graph.neg %v : tensor<24xf32>
  %d = graph.exp %c : tensor<24xf32>
  %y = graph.add %d, %v : (tensor<24xf32>, tensor<24xf32>) -> tensor<24xf32>
  func.return %y : tensor<24xf32>
}
"""
"""A matrix product, rectified; of which a view is read twice."""


def graph_of(make: Make, text: str, *passes: str) -> FuncOp:
    program = make(text, w=np.ones((6, 6)))
    for each in passes:
        program.after(each)
    return program.main


def spans(problem: Problem) -> dict[str, tuple[int, int, int]]:
    """Of each buffer when it is alive and its bytes."""
    return {buffer.id: (buffer.lower, buffer.upper, buffer.size) for buffer in problem.buffers}


def test_each_operator_has_a_buffer_until_its_last_use_through_views_too(make: Make) -> None:
    assert spans(lifetimes(graph_of(make, RESIDUAL))) == {
        "x": (0, 1, 96),
        "a": (0, 2, 96),
        "b": (1, 5, 96),  # read by the addition through its view
        "c": (2, 4, 96),
        "d": (3, 5, 96),
        "y": (4, 5, 96),
    }


def test_elementwise_operators_write_over_what_nobody_else_reads(make: Make) -> None:
    options = Lifetimes(in_place=True)
    # Not d into b, which the addition reads; and the addition reads two values.
    assert spans(lifetimes(graph_of(make, RESIDUAL), options)) == {
        "x": (0, 1, 96),
        "a": (0, 3, 96),
        "c": (1, 3, 96),
        "y": (2, 3, 96),
    }


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("%y = graph.relu %x : tensor<4x6xf32>", 2),  # an input is not written
        ("%a = graph.relu %x : tensor<4x6xf32>\n%y = graph.neg %a : tensor<4x6xf32>", 2),
        (
            "%a = graph.relu %x : tensor<4x6xf32>\n"
            "%y = graph.mul %a, %a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>",
            2,
        ),
        (
            "%a = graph.relu %x : tensor<4x6xf32>\n%b = graph.neg %a : tensor<4x6xf32>\n"
            "%y = graph.add %a, %b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>",
            4,
        ),
        (
            "%a = graph.reduce_sum %x axes [0] : tensor<4x6xf32> -> tensor<1x6xf32>\n"
            "%w = graph.constant dense<1.0> : tensor<4x6xf32>\n"
            "%y = graph.add %a, %w : (tensor<1x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>",
            3,  # the sum is smaller than the result
        ),
    ],
)
def test_what_is_written_over(make: Make, body: str, count: int) -> None:
    text = f"func.func @main(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {{\n{body}\nfunc.return %y : tensor<4x6xf32>\n}}"
    assert len(lifetimes(graph_of(make, text), Lifetimes(in_place=True)).buffers) == count


def test_what_is_returned_is_not_written_over(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
      %a = graph.exp %x : tensor<4x6xf32>
      %y = graph.relu %a : tensor<4x6xf32>
      func.return %y, %a : tensor<4x6xf32>, tensor<4x6xf32>
    }
    """
    found = lifetimes(graph_of(make, text), Lifetimes(in_place=True))
    assert spans(found) == {"x": (0, 1, 96), "a": (0, 2, 96), "y": (1, 2, 96)}
    assert spans(lifetimes(graph_of(make, text), Lifetimes(outputs=False)))["a"] == (0, 2, 96)


def test_a_fused_group_is_one_buffer(make: Make) -> None:
    found = lifetimes(graph_of(make, RESIDUAL, "graph-fuse"))
    assert spans(found) == {"x": (0, 1, 96), "b": (0, 2, 96), "y": (1, 2, 96)}


def test_inputs_outputs_weights_and_bytes_are_as_asked(make: Make) -> None:
    main = graph_of(make, RESIDUAL)
    assert "x" not in spans(lifetimes(main, Lifetimes(inputs=False)))
    int8 = lifetimes(main, Lifetimes(1))
    assert {buffer.size for buffer in int8.buffers} == {24}
    assert spans(lifetimes(main, Lifetimes(1, weights="used")))["w"] == (0, 1, 36)
    twice = RESIDUAL.replace(
        "%b = graph.relu %a : tensor<4x6xf32>",
        "%e = graph.relu %a : tensor<4x6xf32>\n"
        "%b = graph.matmul %e, %w : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>",
    ).replace(
        "graph.matmul %x, %w : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>", "graph.neg %x : tensor<4x6xf32>"
    )
    assert spans(lifetimes(graph_of(make, twice), Lifetimes(weights="used")))["w"] == (2, 3, 144)
    assert spans(lifetimes(graph_of(make, twice), Lifetimes(weights="prefetched")))["w"] == (1, 3, 144)
    fused = spans(lifetimes(graph_of(make, RESIDUAL), Lifetimes(in_place=True, weights="used")))
    assert fused["w"] == (0, 1, 144)
    assert fused["a"] == (0, 3, 96)


def test_weights_are_what_is_computed_from_constants_alone_and_a_view_is_what_it_shows(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
      %w = graph.constant #graph.weight<"w"> : tensor<6x6xf32>
      %v = graph.reshape %w : tensor<6x6xf32> -> tensor<36x1xf32>
      %u = graph.reshape %v : tensor<36x1xf32> -> tensor<6x6xf32>
      %n = graph.neg %w : tensor<6x6xf32>
      %a = graph.matmul %x, %u : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
      %b = graph.matmul %a, %w : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
      %y = graph.matmul %b, %n : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
      func.return %y : tensor<4x6xf32>
    }
    """
    main = graph_of(make, text)
    assert set(spans(lifetimes(main))) == {"x", "a", "b", "y"}
    with_weights = spans(lifetimes(main, Lifetimes(weights="used")))
    assert with_weights["w"] == (0, 2, 144)
    assert with_weights["n"] == (2, 3, 144)


def test_accesses_are_those_of_the_operators_and_a_slice_reads_its_part(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<4x6xf32>) -> tensor<2x6xf32> {
      %a = graph.relu %x : tensor<4x6xf32>
      %s = graph.slice %a starts [1, 0] sizes [2, 6] steps [1, 1] : tensor<4x6xf32> -> tensor<2x6xf32>
      %b = graph.exp %s : tensor<2x6xf32>
      %c = graph.neg %a : tensor<4x6xf32>
      %t = graph.slice %c starts [0, 0] sizes [2, 6] steps [1, 1] : tensor<4x6xf32> -> tensor<2x6xf32>
      %y = graph.add %b, %t : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
      func.return %y : tensor<2x6xf32>
    }
    """
    found = on_chip_problem(graph_of(make, text), 1000, Lifetimes(alignment=16), workspace=(0, 8))
    assert found.tensors == (
        Tensor("x", 96, (TensorAccess(0),), source=True, alignment=16, kind="input 4x6"),
        Tensor("a", 96, (TensorAccess(0), TensorAccess(1, 48), TensorAccess(2)), alignment=16, kind="graph.relu 4x6"),
        Tensor("b", 48, (TensorAccess(1), TensorAccess(3)), alignment=16, kind="graph.exp 2x6"),
        Tensor("c", 96, (TensorAccess(2), TensorAccess(3, 48)), alignment=16, kind="graph.neg 4x6"),
        Tensor("y", 48, (TensorAccess(3),), output=True, alignment=16, kind="graph.add 2x6"),
    )
    assert (found.capacity, found.workspace) == (1000, (0, 8))
    assert decide(found, "sweep").off_chip_bytes == 96 + 48


def test_what_is_no_graph_is_refused_where_it_is(make: Make) -> None:
    text = """
    func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      func.return %x : tensor<?xf32>
    }
    """
    with pytest.raises(UserError, match="shapes that are known"):
        lifetimes(graph_of(make, text))
    text = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %c = arith.constant 1 : index
      func.return %x : tensor<2xf32>
    }
    """
    with pytest.raises(UserError, match=r"arith.constant is no operator of a graph"):
        lifetimes(graph_of(make, text))


def live_bytes(main: FuncOp) -> int:
    """The most bytes that are needed at once, from which values are read at or after which op."""

    def root(value: SSAValue) -> SSAValue:
        while isinstance(owner := value.owner, Operation) and is_view(owner):
            value = owner.operands[0]
        return value

    ops = [op for op in main.body.block.ops if not op.results or not (is_constant(op.results[0]) or is_view(op))]
    made: dict[SSAValue, int] = {result: index for index, op in enumerate(ops) for result in op.results}
    made |= dict.fromkeys(main.body.block.args, 0)
    last: dict[SSAValue, int] = dict(made)
    for index, op in enumerate(ops):
        for operand in map(root, op.operands):
            if operand in last:
                last[operand] = index
            elif isinstance(op, ReturnOp):
                raise AssertionError("a constant is returned")
    size = {value: 4 * prod(tensor_of(value).get_shape()) for value in made}
    return max(sum(size[v] for v in made if made[v] <= t <= last[v]) for t in range(len(ops)))


@pytest.mark.parametrize(
    ("name", "raw", "in_place"),
    [("squeezenet", 66, 40), ("shufflenet", 171, 89), ("resnet50", 176, 74), ("inception_v1", 142, 85)],
)
def test_networks_have_as_many_buffers_as_operators_and_pack_into_what_is_alive(
    name: str, raw: int, in_place: int
) -> None:
    main = main_function(import_program(zoo.NETWORKS[name](seed=0, small=True), {}).module)
    every = lifetimes(main)
    assert len(every.buffers) == raw
    assert peak(every)[1] == live_bytes(main)
    assert len(lifetimes(main, Lifetimes(in_place=True)).buffers) == in_place
    for options in (Lifetimes(), Lifetimes(1, in_place=True), Lifetimes(1, in_place=True, weights="prefetched")):
        problem = lifetimes(main, options)
        plan = solve(problem, "portfolio").plan
        assert plan is not None
        assert max(plan.offsets[each.id] + each.size for each in problem.buffers) == lower_bound(problem)
