# SPDX-License-Identifier: Apache-2.0
"""Schedules of upstream's ops alone give the loops and tiles that mlir-opt 19 gives, and compute the same."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from programs import checked
from xdsl.dialects import scf
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.transform import NamedSequenceOp
from xdsl.ir import Operation
from xdsl.utils.hints import isa

from penstock.dialects.context import make_context
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.to_text import module_text
from penstock.passes.analysis.loops import constant_of
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import START
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify
from penstock.tools.fuzz.tensor_programs import inputs_of, kernel_of

MLIR_OPT = shutil.which("mlir-opt-19")
pytestmark = pytest.mark.skipif(MLIR_OPT is None, reason="mlir-opt-19 is not installed")

HANDLE = "!transform.any_op"


def mlir_opt(text: str, *flags: str) -> str:
    assert MLIR_OPT is not None
    found = subprocess.run([MLIR_OPT, *flags], input=text, capture_output=True, text=True, check=False)
    assert not found.returncode, found.stderr + text
    return found.stdout


def skeleton(op: Operation) -> list[object]:
    """The loops in an op with their bounds, and the structured ops in them with the shapes of their tiles."""
    found: list[object] = []
    plain: list[object] = []
    for each in op.regions[0].block.ops:
        if isinstance(each, scf.ForOp):
            bounds = [constant_of(value) for value in (each.lb, each.ub, each.step)]
            found.append((*bounds, skeleton(each)))
        elif isinstance(each, ForallOp):
            found.append((str(each.staticUpperBound), str(each.staticStep), str(each.mapping), skeleton(each)))
        elif isinstance(each, GenericOp):
            # A fill of MLIR's reads a scalar; ours has it in the body.
            operands = [
                (value.type.get_shape(), str(map_attr))
                for value, map_attr in zip(each.operands, each.indexing_maps, strict=True)
                if isa(value.type, TensorType)
            ]
            plain.append((operands, [kind.data.value for kind in each.iterator_types]))
    return [*sorted(plain, key=str), *found]


def agree_on(program: str, schedule: Sequence[str], seed: int = 0) -> None:
    """Raise AssertionError where what we make of a schedule, and what mlir-opt does, differ."""
    main = "transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly})"
    body = "\n".join(
        (
            '%kernel = transform.structured.match ops{["func.func"]} attributes {scheduled} in %module'
            f" : ({HANDLE}) -> {HANDLE}",
            *schedule,
            "transform.yield",
        )
    )
    marked = program.replace(" {\n", " attributes {scheduled} {\n", 1)
    both = f"module attributes {{transform.with_named_sequence}} {{\n{marked}\n{main} {{\n{body}\n}}\n}}"
    theirs = checked(
        mlir_opt(both, "--transform-interpreter", "--linalg-generalize-named-ops", "--cse", "--mlir-print-op-generic")
    )
    sequence = f"transform.named_sequence @kernel(%kernel: {HANDLE} {{transform.readonly}})"
    ours = checked(program)
    lines = "\n".join((*schedule, "transform.yield"))
    (given,) = (op for op in checked(f"{sequence} {{\n{lines}\n}}").ops if isinstance(op, NamedSequenceOp))
    Schedule(kernel_of(ours)).replay(given, START)
    verify(ours)
    for op in list(theirs.ops):
        if isinstance(op, NamedSequenceOp):
            op.detach()
    for module in (ours, theirs):
        # What has been fused everywhere is dead; MLIR leaves it.
        run_passes(make_context(), module, read_pipeline("value-dce"))
    assert skeleton(kernel_of(ours)) == skeleton(kernel_of(theirs)), "\n".join(schedule)
    inputs = inputs_of(ours, seed)
    expected = run_module(checked(program), inputs, WeightStore(), ordered=True)
    for module in (ours, theirs):
        for left, right in zip(run_module(module, inputs, WeightStore(), ordered=True), expected, strict=True):
            np.testing.assert_array_equal(left, right)


MATMUL = """func.func private @kernel(%x: tensor<16x32xi32>, %w: tensor<32x24xi32>, %y: tensor<16x24xi32>)
    -> tensor<16x24xi32> {
  %e = tensor.empty() : tensor<16x24xi32>
  %zero = arith.constant 0 : i32
  %fill = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<16x24xi32>) {
  ^bb0(%o: i32):
    linalg.yield %zero : i32
  } -> tensor<16x24xi32>
  %mm = linalg.generic {
      indexing_maps = [
        affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>
      ],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<16x32xi32>, tensor<32x24xi32>) outs(%fill : tensor<16x24xi32>) {
  ^bb0(%a: i32, %b: i32, %o: i32):
    %p = arith.muli %a, %b : i32
    %s = arith.addi %o, %p : i32
    linalg.yield %s : i32
  } -> tensor<16x24xi32>
  %e2 = tensor.empty() : tensor<16x24xi32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%mm, %y : tensor<16x24xi32>, tensor<16x24xi32>) outs(%e2 : tensor<16x24xi32>) {
  ^bb0(%a: i32, %b: i32, %o: i32):
    %s = arith.addi %a, %b : i32
    linalg.yield %s : i32
  } -> tensor<16x24xi32>
  func.return %r : tensor<16x24xi32>
}
func.func @main(%x: tensor<16x32xi32>, %w: tensor<32x24xi32>, %y: tensor<16x24xi32>) -> tensor<16x24xi32> {
  %r = func.call @kernel(%x, %w, %y) : (tensor<16x32xi32>, tensor<32x24xi32>, tensor<16x24xi32>) -> tensor<16x24xi32>
  func.return %r : tensor<16x24xi32>
}
"""
"""A product, what it starts from, and what is done to it."""

MATCH = (
    f'%all = transform.structured.match ops{{["linalg.generic"]}} in %kernel : ({HANDLE}) -> {HANDLE}',
    f"%fill, %mm, %r = transform.split_handle %all : ({HANDLE}) -> ({HANDLE}, {HANDLE}, {HANDLE})",
)


def typed(line: str, inputs: int, outputs: int) -> str:
    """An op with its type: so many handles to so many."""
    results = ", ".join([HANDLE] * outputs)
    return f"{line} : ({', '.join([HANDLE] * inputs)}) -> {f'({results})' if outputs != 1 else results}"


def padded(target: str, multiples: Sequence[object], dims: Sequence[int], copy: str = "none") -> str:
    """`pad`, with zeros."""
    options = f'copy_back_op = "{copy}", padding_dimensions = {dims}, padding_values = [0 : i32, 0 : i32, 0 : i32]'
    listed = ", ".join(map(str, multiples))
    line = f"%p, %pads, %back = transform.structured.pad {target} pad_to_multiple_of [{listed}] {{{options}}}"
    return typed(line, 1, 3)


SCHEDULES = {
    "tile": [
        typed("%t, %l:3 = transform.structured.tile_using_for %mm tile_sizes [4, 8, 16]", 1, 4),
    ],
    "tile, interchanged": [
        typed("%t, %l:3 = transform.structured.tile_using_for %mm tile_sizes [4, 8, 16] interchange = [1, 0, 2]", 1, 4),
    ],
    "twice": [
        typed("%t, %l:2 = transform.structured.tile_using_for %mm tile_sizes [8, 12]", 1, 3),
        typed("%u, %k:3 = transform.structured.tile_using_for %t tile_sizes [4, 3, 8] interchange = [1, 0, 2]", 1, 4),
    ],
    "reduction outside": [
        typed("%t, %l = transform.structured.tile_using_for %mm tile_sizes [0, 0, 16]", 1, 2),
        typed("%u, %k:2 = transform.structured.tile_using_for %t tile_sizes [4, 8]", 1, 3),
    ],
    "fuse": [
        typed("%t, %l:2 = transform.structured.fuse %r [4, 8] interchange [1, 0]", 1, 3),
    ],
    "fuse, by attributes": [
        typed("%t, %l:2 = transform.structured.fuse %r {tile_sizes = [4, 8], tile_interchange = [1, 0]}", 1, 3),
    ],
    "fuse, then the product": [
        typed("%t, %l:2 = transform.structured.fuse %r [4, 8]", 1, 3),
        typed('%again = transform.structured.match ops{["linalg.generic"]} in %l#1', 1, 1),
        typed("%f, %m, %s = transform.split_handle %again", 1, 3),
        typed("%u, %k = transform.structured.tile_using_for %m tile_sizes [0, 0, 8]", 1, 2),
    ],
    "compute at": [
        typed("%t, %l:2 = transform.structured.tile_using_for %r tile_sizes [4, 8] interchange = [1, 0]", 1, 3),
        typed("%m, %n = transform.structured.fuse_into_containing_op %mm into %l#1", 2, 2),
        typed("%f, %o = transform.structured.fuse_into_containing_op %fill into %n", 2, 2),
        typed("%i = transform.structured.interchange %m iterator_interchange = [1, 0, 2]", 1, 1),
        typed("%u, %k = transform.structured.tile_using_for %i tile_sizes [0, 0, 16]", 1, 2),
    ],
    "compute at the outer loop": [
        typed("%t, %l:2 = transform.structured.tile_using_for %r tile_sizes [4, 0]", 1, 2).replace("%l:2", "%l"),
        typed("%m, %n = transform.structured.fuse_into_containing_op %mm into %l", 2, 2),
        typed("%u, %k = transform.structured.tile_using_for %t tile_sizes [0, 8]", 1, 2),
    ],
    "interchange": [
        typed("%i = transform.structured.interchange %mm iterator_interchange = [2, 1, 0]", 1, 1),
        typed("%g = transform.structured.generalize %i", 1, 1),
        typed("%t, %l:2 = transform.structured.tile_using_for %g tile_sizes [0, 12, 4]", 1, 3),
    ],
    "split reduction": [
        typed(
            "%e, %f, %s, %c = transform.structured.split_reduction %mm {insert_split_dimension = 2, split_factor = 4}",
            1,
            4,
        ),
        typed("%t, %l:3 = transform.structured.tile_using_for %s tile_sizes [4, 8, 1]", 1, 4),
    ],
    "split reduction, strided": [
        typed("%e, %f, %s, %c = transform.structured.split_reduction %mm {inner_parallel, split_factor = 8}", 1, 4),
    ],
    "reduction outside, interchanged": [
        typed("%t, %l:3 = transform.structured.tile_using_for %mm tile_sizes [4, 8, 16] interchange = [2, 0, 1]", 1, 4),
    ],
    "reduction between": [
        typed("%t, %l:3 = transform.structured.tile_using_for %mm tile_sizes [4, 8, 16] interchange = [1, 2, 0]", 1, 4),
    ],
    "at once": [
        typed("%t, %l = transform.structured.tile_using_forall %mm tile_sizes [4, 8]", 1, 2),
        typed("%u, %k = transform.structured.tile_using_for %t tile_sizes [0, 0, 8]", 1, 2),
    ],
    "at once, threads": [
        typed(
            "%t, %l = transform.structured.tile_using_forall %mm num_threads [0, 6](mapping = [#gpu.thread<x>])", 1, 2
        ),
    ],
    "at once, a parameter": [
        "%p = transform.param.constant 6 : i64 -> !transform.any_param",
        "%t, %l = transform.structured.tile_using_forall %mm tile_sizes [4, %p]"
        f" : ({HANDLE}, !transform.any_param) -> ({HANDLE}, {HANDLE})",
    ],
    "at once, a packed parameter": [
        "%p = transform.param.constant 4 : i64 -> !transform.any_param",
        "%t, %l = transform.structured.tile_using_forall %mm num_threads *(%p)"
        f" : ({HANDLE}, !transform.any_param) -> ({HANDLE}, {HANDLE})",
    ],
    "at once, with what it is computed from": [
        typed("%t, %l = transform.structured.tile_using_forall %r tile_sizes [4, 8]", 1, 2),
        typed("%m, %n = transform.structured.fuse_into_containing_op %mm into %l", 2, 2),
        typed("%f, %o = transform.structured.fuse_into_containing_op %fill into %n", 2, 2),
    ],
    "at once, from what it starts from": [
        typed("%t, %l = transform.structured.tile_using_forall %mm tile_sizes [4, 8]", 1, 2),
        typed("%f, %n = transform.structured.fuse_into_containing_op %fill into %l", 2, 2),
    ],
    "values": [
        f"%v = transform.get_operand %r[0] : ({HANDLE}) -> !transform.any_value",
        f"%p = transform.get_defining_op %v : (!transform.any_value) -> {HANDLE}",
        f"%w = transform.get_result %p[0] : ({HANDLE}) -> !transform.any_value",
        f"%q = transform.get_defining_op %w : (!transform.any_value) -> {HANDLE}",
        typed("%f = transform.get_parent_op %q {isolated_from_above}", 1, 1),
        typed('%none = transform.get_parent_op %q {allow_empty_results, op_name = "scf.for"}', 1, 1),
        typed('%again = transform.structured.match ops{["linalg.generic"]} in %f', 1, 1),
        typed("%fills = transform.get_producer_of_operand %q[2]", 1, 1),
        typed("%t, %l:2 = transform.structured.tile_using_for %fills tile_sizes [4, 8]", 1, 3),
    ],
    "pad": [
        padded("%mm", [5, 7, 9], [0, 1, 2]),
        typed("%t, %l:3 = transform.structured.tile_using_for %p tile_sizes [5, 7, 9]", 1, 4),
    ],
    "pad, copied": [
        padded("%r", [10], [1], "linalg.copy"),
    ],
    "pad, nothing to do": [
        padded("%mm", [4, 8], [1, 2]),
    ],
    "pad, to a parameter": [
        "%c = transform.param.constant 18 : i64 -> !transform.param<i64>",
        padded("%r", ["%c"], [0]).replace(f"({HANDLE}) ->", f"({HANDLE}, !transform.param<i64>) ->"),
    ],
    "handles": [
        typed("%p = transform.get_producer_of_operand %r[0]", 1, 1),
        typed("%c = transform.get_consumers_of_result %p[0]", 1, 1),
        typed("%t, %l:2 = transform.structured.tile_using_for %c tile_sizes [4, 8]", 1, 3),
        typed('%outer = transform.get_parent_op %t {op_name = "scf.for", nth_parent = 2 : i64}', 1, 1),
        typed("%f, %n = transform.structured.fuse_into_containing_op %p into %outer", 2, 2),
    ],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_upstreams_ops_gives_what_mlir_gives(name: str) -> None:
    agree_on(MATMUL, [*MATCH, *SCHEDULES[name]])


@pytest.mark.parametrize("name", SCHEDULES)
def test_mlir_reads_what_we_print_of_a_schedule(name: str) -> None:
    body = "\n".join((*MATCH, *SCHEDULES[name], "transform.yield"))
    text = f"transform.named_sequence @kernel(%kernel: {HANDLE} {{transform.consumed}}) {{\n{body}\n}}"
    module = f"module attributes {{transform.with_named_sequence}} {{\n{text}\n}}"
    assert mlir_opt(module_text(make_context(), checked(module))) == mlir_opt(module)


def random_schedule(random: Random) -> list[str]:
    """Tile the product; or the sum, with the product computed in one of the loops, and tiled again there."""
    sizes = [random.choice((0, 1, 2, 4, 8)), random.choice((0, 2, 3, 6, 12)), random.choice((0, 4, 8, 16))]
    if random.random() < 0.5:
        return [_tiled("%t", "%mm", sizes, random.choice(([0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1])))]
    lines, loops = [_tiled("%t", "%r", sizes[:2], random.choice(([0, 1], [1, 0])))], sum(size > 0 for size in sizes[:2])
    if loops:
        lines += [_fused("%mm", random.randrange(loops)), _tiled("%u", "%f", [0, 0, sizes[2]], [0, 1, 2], "k")]
    return lines


def _tiled(name: str, target: str, sizes: Sequence[int], order: Sequence[int], loops: str = "l") -> str:
    count = sum(size > 0 for size in sizes)
    results = ", ".join([name, *(f"%{loops}{number}" for number in range(count))])
    listed, places = list(sizes), list(order)
    line = f"{results} = transform.structured.tile_using_for {target} tile_sizes {listed} interchange = {places}"
    return typed(line, 1, 1 + count)


def _fused(producer: str, loop: int) -> str:
    return typed(f"%f, %n = transform.structured.fuse_into_containing_op {producer} into %l{loop}", 2, 2)


@pytest.mark.parametrize("seed", range(8))
def test_random_schedules_of_upstreams_ops_give_what_mlir_gives(seed: int) -> None:
    agree_on(MATMUL, [*MATCH, *random_schedule(Random(seed))], seed)


@pytest.mark.slow
def test_many_random_schedules_of_upstreams_ops_give_what_mlir_gives() -> None:
    for seed in range(100, 400):
        agree_on(MATMUL, [*MATCH, *random_schedule(Random(seed))], seed)
