# SPDX-License-Identifier: Apache-2.0
"""Images by patches: the same bits as whole ones, and what is said of the memory and the work they take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from programs import parsed_in_context
from sampling import examples

from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import tensor_of
from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.passes.graph.patch import PatchPass
from penstock.passes.graph.patching.images import ImageSteps
from penstock.passes.graph.values import graph_blocks
from penstock.passes.planning.patches import (
    Chain,
    PatchProblem,
    Read,
    Step,
    Window,
    least_macs,
    least_peak,
    pareto,
    reading,
)
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module

Array = NDArray[Any]


@st.composite
def networks(draw: st.DrawFn) -> tuple[str, int]:
    """
    A chain of windowed and elementwise ops with shortcuts, as text, and the rank of its images. Weights are integers,
    so that sums are exact in whatever order they are taken; a mean is rounded, so nothing sums after one.
    """
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    is_last = draw(st.booleans())
    layout = "NHWC" if is_last else "NCHW"
    sizes = [draw(st.integers(3, 9)) for _ in range(rank)]
    channels = draw(st.sampled_from([1, 2, 4]))

    def image() -> str:
        shape = [1, *sizes, channels] if is_last else [1, channels, *sizes]
        return f"tensor<{'x'.join(map(str, shape))}xf32>"

    first = image()
    lines: list[str] = []
    is_rounded = False
    shapes = [image()]

    def append(text: str) -> None:
        lines.append(f"%v{len(shapes)} = {text}")
        shapes.append(image())

    for _ in range(draw(st.integers(1, 5))):
        last, held = f"%v{len(shapes) - 1}", image()
        kind = draw(st.sampled_from(["conv", "conv", "depthwise", "max_pool", "average_pool", "relu", "add", "pad"]))
        if is_rounded and kind not in ("max_pool", "relu", "add", "pad"):
            continue
        is_rounded |= kind == "average_pool"
        if kind == "relu":
            append(f"graph.relu {last} : {held}")
        elif kind == "pad":
            around = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
            sizes = [size + around[dim] + around[dim + rank] for dim, size in enumerate(sizes)]
            ends = [[0, *each, 0] if is_last else [0, 0, *each] for each in (around[:rank], around[rank:])]
            append(f"graph.pad {last} pads {ends[0] + ends[1]} value 3.0 : {held} -> {image()}")
        elif kind == "add":
            equal = [number for number, shape in enumerate(shapes) if shape == held]
            other = draw(st.sampled_from(equal))
            append(f"graph.add {last}, %v{other} : ({held}, {held}) -> {held}")
        else:
            kernel: list[int] = []
            strides: list[int] = []
            dilations: list[int] = []
            befores: list[int] = []
            afters: list[int] = []
            for dim in range(rank):
                size, step, apart = (draw(st.integers(1, 3)) for _ in range(3))
                before, after = (draw(st.integers(0, size - 1)) for _ in range(2))
                extent = (size - 1) * apart + 1
                if sizes[dim] + before + after < extent:
                    size = apart = extent = 1
                    before = after = 0
                kernel.append(size)
                strides.append(step)
                dilations.append(apart)
                befores.append(before)
                afters.append(after)
                sizes[dim] = (sizes[dim] + before + after - extent) // step + 1
            window = f"strides {strides} pads {befores + afters} dilations {dilations}"
            at = f' layout "{layout}"' if is_last else ""
            if "pool" in kind:
                append(f"graph.{kind} {last} kernel_shape {kernel} {window}{at} : {held} -> {image()}")
                continue
            group = channels if kind == "depthwise" else 1
            inputs, outputs = channels // group, channels if kind == "depthwise" else draw(st.integers(1, 4))
            shape = [*kernel, inputs, outputs] if is_last else [outputs, inputs, *kernel]
            filters = f"tensor<{'x'.join(map(str, shape))}xf32>"
            draw_weights = np.random.default_rng(draw(st.integers(0, 99)))
            data = draw_weights.integers(-4, 4, shape).astype(np.float32)
            lines.append(f"%w{len(lines)} = graph.constant dense<{data.tolist()}> : {filters}")
            weights = f"%w{len(lines) - 1}"
            channels = outputs
            append(f"graph.conv {last}, {weights} {window} group {group}{at} : ({held}, {filters}) -> {image()}")
    result = f"%v{len(shapes) - 1}"
    text = "\n  ".join(
        [f"func.func @main(%v0: {first}) -> {shapes[-1]} {{", *lines, f"func.return {result} : {shapes[-1]}"]
    )
    return f"{text}\n}}", rank


def run(text: str, patch: PatchPass | None) -> list[Array]:
    ctx, module = parsed_in_context(text)
    if patch is not None:
        patch.apply(ctx, module)
        module.verify()
    (block,) = graph_blocks(module)
    shape = tensor_of(block.args[0]).get_shape()
    image = np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32)
    return run_module(module, [image], ctx.weights)


@given(networks(), st.data())
@examples(200)
def test_patches_give_the_bits_of_the_whole(network: tuple[str, int], data: st.DataObject) -> None:
    text, rank = network
    (expected,) = run(text, None)
    counts = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    try:
        (found,) = run(text, PatchPass(patches=counts))
    except UserError:
        return  # an image that is too small, or of which a patch reads padding alone
    assert np.array_equal(expected, found, equal_nan=True)


@given(networks())
@examples(100)
def test_every_plan_that_is_chosen_gives_the_bits_of_the_whole(network: tuple[str, int]) -> None:
    text, _ = network
    (expected,) = run(text, None)
    _, module = parsed_in_context(text)
    (block,) = graph_blocks(module)
    problem = ImageSteps.of(block).problem()
    for plan in list(pareto(problem))[:4]:
        (found,) = run(text, PatchPass(limit=plan.peak))
        assert np.array_equal(expected, found, equal_nan=True)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 9), st.data())
@examples(100)
def test_a_patch_reads_what_its_elements_read(
    extent: int, stride: int, before: int, size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, 8))
    stop = data.draw(st.integers(start + 1, 10))
    window = Window(extent, stride, before)
    touched = [at * stride - before + offset for at in range(start, stop) for offset in range(extent)]
    inside = [each for each in touched if 0 <= each < size]
    found = reading(window, start, stop, size)
    if found is None:
        assert not inside
        return
    # Between windows that lie apart there may be elements that none of them reads.
    assert stride > extent or found[:2] <= (min(inside), max(inside) + 1)
    assert found.start - found.before == min(touched)
    assert found.stop + found.after == max(touched) + 1


def all_plans(problem: PatchProblem) -> list[tuple[int, int]]:
    """The peak and the work of every way to cut the steps into chains, and those into patches."""
    cuts = problem.cuts
    plans: list[tuple[int, int]] = []
    for kept in product((False, True), repeat=len(cuts) - 2):
        ends = [cuts[0], *(cut for cut, keep in zip(cuts[1:-1], kept, strict=True) if keep), cuts[-1]]
        ways: list[list[Chain]] = []
        for first, last in pairwise(ends):
            spans = [
                [found for count in (1, 2, 3, 4, 5, 6) if (found := problem.spans(first, last, dim, count))]
                for dim in range(2)
            ]
            ways.append([problem.chain(first, last, each) for each in product(*spans)])
        plans += [(max(each.peak for each in way), sum(each.macs for each in way)) for way in product(*ways)]
    return plans


@given(st.lists(st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.integers(1, 5)), min_size=1, max_size=3))
@examples(40)
def test_the_plan_is_the_best_of_all(layers: Sequence[tuple[int, int, int]]) -> None:
    size = 6
    steps: list[Step] = []
    for number, (extent, stride, pixel) in enumerate(layers):
        size = (size + 2 * (extent // 2) - extent) // stride + 1
        window = Window(extent, stride, extent // 2)
        steps.append(Step((Read(number, (window, window)),), (size, size), pixel, extent * extent * pixel))
    problem = PatchProblem((6, 6), 1, tuple(steps))
    plans = all_plans(problem)
    assert least_peak(problem) == min(peak for peak, _ in plans)
    for limit in sorted({peak for peak, _ in plans})[:: max(len(plans) // 8, 1)]:
        found = least_macs(problem, limit)
        assert found is not None
        assert found.peak <= limit
        assert found.macs == min(macs for peak, macs in plans if peak <= limit)
    assert least_macs(problem, least_peak(problem) - 1) is None


STEM = """
func.func @main(%x: tensor<1x24x24x3xf32>) -> tensor<1x6x6x8xf32> {
  %v = graph.constant dense<0.25> : tensor<3x3x3x16xf32>
  %d = graph.constant dense<0.5> : tensor<3x3x1x16xf32>
  %w = graph.constant dense<0.125> : tensor<1x1x16x8xf32>
  %0 = graph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC"
    : (tensor<1x24x24x3xf32>, tensor<3x3x3x16xf32>) -> tensor<1x24x24x16xf32>
  %1 = graph.relu %0 : tensor<1x24x24x16xf32>
  %2 = graph.conv %1, %d strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] group 16 layout "NHWC"
    : (tensor<1x24x24x16xf32>, tensor<3x3x1x16xf32>) -> tensor<1x12x12x16xf32>
  %3 = graph.conv %2, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC"
    : (tensor<1x12x12x16xf32>, tensor<1x1x16x8xf32>) -> tensor<1x12x12x8xf32>
  %4 = graph.max_pool %3 kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC"
    : tensor<1x12x12x8xf32> -> tensor<1x6x6x8xf32>
  func.return %4 : tensor<1x6x6x8xf32>
}
"""


def test_the_arena_keeps_the_limit() -> None:
    limit = 16_384
    arenas: list[int] = []
    results: list[Array] = []
    image = np.random.default_rng(3).standard_normal((1, 24, 24, 3)).astype(np.float32)
    for pipeline in (None, f"default, +patch{{limit={limit}}} before graph-fuse"):
        ctx, module = parsed_in_context(STEM)
        compile_module(module, ctx, "native", "loop", pipeline=pipeline)
        arenas.append(sum(plan.peak for plan in plan_report(module) if plan.scope == ARENA))
        results += run_module(module, [image], ctx.weights, ordered=True)
    assert np.array_equal(results[0], results[1])
    assert arenas[1] <= limit < prod((24, 24, 16, 4)) <= arenas[0]


@pytest.mark.parametrize(
    ("patch", "message", "note"),
    [
        (PatchPass(limit=100), "do not fit 100 bytes", "the least"),
        (PatchPass(), "either a limit or patches", "patches=4,4"),
        (PatchPass(limit=1, patches=(2, 2)), "either a limit or patches", "patches=4,4"),
        (PatchPass(limit=1, until="x"), "until goes with patches", ""),
        (PatchPass(patches=(2,)), "has 2 spatial dimensions", ""),
        (PatchPass(patches=(7, 1)), "not so many patches", ""),
        (PatchPass(patches=(2, 2), until="nowhere"), 'ends at "nowhere"', ""),
    ],
)
def test_what_cannot_be_is_said(patch: PatchPass, message: str, note: str) -> None:
    ctx, module = parsed_in_context(STEM)
    with pytest.raises(UserError) as fault:
        patch.apply(ctx, module)
    assert message in fault.value.message
    assert note in "".join(fault.value.notes)


def test_a_limit_that_channels_do_not_meet_is_met_by_patches() -> None:
    """A pool by channels keeps all that the convolution before it reads, which is larger here than what it makes."""
    text = """
func.func @main(%x: tensor<1x3x8x8xf32>) -> tensor<1x4x1x1xf32> {
  %v = graph.constant dense<0.25> : tensor<16x3x3x3xf32>
  %w = graph.constant dense<0.5> : tensor<4x16x3x3xf32>
  %0 = graph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] : (tensor<1x3x8x8xf32>, tensor<16x3x3x3xf32>) -> tensor<1x16x8x8xf32>
  %1 = graph.conv %0, %w strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] : (tensor<1x16x8x8xf32>, tensor<4x16x3x3xf32>) -> tensor<1x4x4x4xf32>
  %2 = graph.global_average_pool %1 : tensor<1x4x4x4xf32> -> tensor<1x4x1x1xf32>
  func.return %2 : tensor<1x4x1x1xf32>
}
"""  # noqa: E501
    for limit in (1100, 4200):
        assert np.array_equal(run(text, PatchPass(limit=limit))[0], run(text, None)[0])
    with pytest.raises(UserError, match="do not fit 100 bytes"):
        run(text, PatchPass(limit=100))
