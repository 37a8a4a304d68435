# SPDX-License-Identifier: Apache-2.0
"""How a program fits a memory: the way that computes least, by what its plan takes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_c import emit_c
from penstock.runtime.compiler import LoadedProgram, compile_module, load_input
from penstock.runtime.fit import Fit, Fitting, Technique
from penstock.runtime.interpreter import run_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from tests.conftest import Command

MACHINE = "cortex-m55-like"
STEM = """
func.func @main(%x: tensor<1x8x8x2xi8>) -> tensor<1x4x4x8xi8> {
  %v = graph.constant dense<2> : tensor<3x3x2x8xi8>
  %d = graph.constant dense<3> : tensor<3x3x1x8xi8>
  %0 = graph.conv %x, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC" accumulate i32 : (tensor<1x8x8x2xi8>, tensor<3x3x2x8xi8>) -> tensor<1x8x8x8xi32>
  %1 = graph.clip %0 min -128.0 max 127.0 : tensor<1x8x8x8xi32>
  %2 = graph.cast %1 : tensor<1x8x8x8xi32> -> tensor<1x8x8x8xi8>
  %3 = graph.conv %2, %d strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] group 8 layout "NHWC" accumulate i32 : (tensor<1x8x8x8xi8>, tensor<3x3x1x8xi8>) -> tensor<1x4x4x8xi32>
  %4 = graph.clip %3 min -128.0 max 127.0 : tensor<1x4x4x8xi32>
  %5 = graph.cast %4 : tensor<1x4x4x8xi32> -> tensor<1x4x4x8xi8>
  func.return %5 : tensor<1x4x4x8xi8>
}
"""  # noqa: E501


BRANCHES = """
func.func @main(%x: tensor<1x2x8x8xf32>, %c: tensor<i1>) -> tensor<1x2x2x2xf32> {
  %y = graph.if %c(%x) {
  ^bb0(%a: tensor<1x2x8x8xf32>):
    %v = graph.constant dense<0.25> : tensor<16x2x3x3xf32>
    %w = graph.constant dense<0.5> : tensor<2x16x3x3xf32>
    %0 = graph.conv %a, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] : (tensor<1x2x8x8xf32>, tensor<16x2x3x3xf32>) -> tensor<1x16x8x8xf32>
    %1 = graph.conv %0, %w strides [4, 4] pads [1, 1, 1, 1] dilations [1, 1] : (tensor<1x16x8x8xf32>, tensor<2x16x3x3xf32>) -> tensor<1x2x2x2xf32>
    graph.yield %1 : tensor<1x2x2x2xf32>
  } else {
  ^bb0(%a: tensor<1x2x8x8xf32>):
    %v = graph.constant dense<0.25> : tensor<2x2x3x3xf32>
    %0 = graph.conv %a, %v strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] : (tensor<1x2x8x8xf32>, tensor<2x2x3x3xf32>) -> tensor<1x2x4x4xf32>
    %1 = graph.max_pool %0 kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] : tensor<1x2x4x4xf32> -> tensor<1x2x2x2xf32>
    graph.yield %1 : tensor<1x2x2x2xf32>
  } : tensor<i1>, (tensor<1x2x8x8xf32>) -> tensor<1x2x2x2xf32>
  func.return %y : tensor<1x2x2x2xf32>
}
"""  # noqa: E501


@pytest.fixture
def stem(tmp_path: Path) -> Path:
    path = tmp_path / "stem.mlir"
    path.write_text(STEM)
    return path


class Modelled(Fitting):
    """A search over what is drawn: images by limits, and what kernels need inside, at least so much."""

    def __init__(self, program: LoadedProgram, seed: int):
        super().__init__(program, None)
        rng = np.random.default_rng(seed)
        peaks = sorted({int(each) for each in rng.integers(10, 1000, 1 + int(rng.integers(40)))}, reverse=True)
        floor, inside = int(rng.integers(0, 900)), int(rng.integers(0, 60))
        work = np.cumsum(rng.integers(1, 50, len(peaks)))
        self._limits = [None, *peaks[1:]]
        self.all = {
            limit: Fit(str(limit), max(peak + inside, floor), int(macs), ("%x 1",))
            for limit, peak, macs in zip(self._limits, peaks, work, strict=True)
        }

    def _limits_of_values(self, images: int | None) -> None:
        return None

    def within_limit(self, limit: int | None) -> Fit:
        self._found[limit] = self.all[limit]
        return self.all[limit]


@pytest.mark.parametrize("seed", range(30))
def test_it_computes_least_of_all_that_fits(seed: int, stem: Path) -> None:
    program = load_input(stem)
    every = list(Modelled(program, seed).all.values())
    least = min(each.bytes for each in every)
    for size in {least, *(each.bytes for each in every[:: max(1, len(every) // 6)])}:
        chosen = Modelled(program, seed).within(size)
        assert chosen.bytes <= size
        assert chosen.macs == min(each.macs for each in every if each.bytes <= size)
    with pytest.raises(UserError, match=f"does not fit {least - 1:,} bytes") as fault:
        Modelled(program, seed).within(least - 1)
    assert f"the least that was found is {least:,} bytes" in fault.value.notes[0]
    assert "alive at its peak: %x 1" in fault.value.notes[1]


def test_a_limit_is_one_that_every_branch_meets(tmp_path: Path) -> None:
    """The second branch fits in less than the first, whose patches compute less than the whole: a stride skips rows."""
    path = tmp_path / "branches.mlir"
    path.write_text(BRANCHES)
    found = list(Fitting(load_input(path), None).techniques())
    assert found[-1].what == "patches"
    assert found[-1].fit.bytes < found[0].fit.bytes
    assert found[-1].fit.macs <= found[0].fit.macs


KEPT = """
func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %a = graph.exp %x : tensor<4x64xf32>
  %b = graph.softmax %a axis 1 : tensor<4x64xf32> -> tensor<4x64xf32>
  %c = graph.softmax %b axis 0 : tensor<4x64xf32> -> tensor<4x64xf32>
  %s = graph.softmax %c axis 1 : tensor<4x64xf32> -> tensor<4x64xf32>
  %d = graph.mul %s, %a : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  func.return %d : tensor<4x64xf32>
}
"""


def test_values_are_computed_again_where_that_is_what_fits(tmp_path: Path) -> None:
    path = tmp_path / "kept.mlir"
    path.write_text(KEPT)
    fitting = Fitting(load_input(path), None)
    found = list(fitting.techniques())
    assert found[-1].what == "or values computed again"
    least = found[-1].fit
    assert least.bytes < fitting.whole.bytes
    assert Fitting(load_input(path), None).within(least.bytes) == least
    with pytest.raises(UserError, match="does not fit") as fault:
        Fitting(load_input(path), None).within(least.bytes - 1)
    assert f"the least that was found is {least.bytes:,} bytes" in fault.value.notes[0]
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    results: list[NDArray[Any]] = []
    for pipeline in (None, least.pipeline):
        program = load_input(path)
        compile_module(program.module, program.ctx, None, "loop", pipeline=pipeline)
        results += run_module(program.module, [x], program.ctx.weights)
    assert np.array_equal(results[0], results[1])


BOTH = """
func.func @main(%x: tensor<1x18x18x2xf32>, %z: tensor<16x64xf32>) -> (tensor<1x7x7x2xf32>, tensor<16x64xf32>) {
  %v = graph.constant dense<0.25> : tensor<3x3x2x24xf32>
  %w = graph.constant dense<0.5> : tensor<3x3x24x2xf32>
  %0 = graph.conv %x, %v strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC" : (tensor<1x18x18x2xf32>, tensor<3x3x2x24xf32>) -> tensor<1x16x16x24xf32>
  %1 = graph.conv %0, %w strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC" : (tensor<1x16x16x24xf32>, tensor<3x3x24x2xf32>) -> tensor<1x7x7x2xf32>
  %a = graph.exp %z : tensor<16x64xf32>
  %b = graph.softmax %a axis 1 : tensor<16x64xf32> -> tensor<16x64xf32>
  %c = graph.softmax %b axis 0 : tensor<16x64xf32> -> tensor<16x64xf32>
  %s = graph.softmax %c axis 1 : tensor<16x64xf32> -> tensor<16x64xf32>
  %d = graph.mul %s, %a : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  func.return %1, %d : tensor<1x7x7x2xf32>, tensor<16x64xf32>
}
"""  # noqa: E501


def test_patches_and_values_computed_again_take_less_than_either(tmp_path: Path) -> None:
    path = tmp_path / "both.mlir"
    path.write_text(BOTH)
    found = {each.what: each.fit for each in Fitting(load_input(path), None).techniques()}
    both = found.pop("patches and values computed again")
    assert both.bytes < min(each.bytes for each in found.values())
    assert both.pipeline is not None
    assert "patch{" in both.pipeline
    assert "graph-remat{" in both.pipeline
    assert Fitting(load_input(path), None).within(both.bytes).bytes <= both.bytes
    rng = np.random.default_rng(0)
    # Sums of such numbers are exact in any order: a BLAS may sum a patch in another order than the whole image.
    inputs = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 18, 18, 2), (16, 64))]
    results: list[Sequence[NDArray[Any]]] = []
    for pipeline in (None, both.pipeline):
        program = load_input(path)
        compile_module(program.module, program.ctx, None, "loop", pipeline=pipeline)
        results.append(run_module(program.module, inputs, program.ctx.weights))
    assert all(np.array_equal(*pair) for pair in zip(*results, strict=True))


def test_what_is_alive_at_the_peak_has_what_operands_are_repacked_to(tmp_path: Path) -> None:
    path = tmp_path / "both.mlir"
    path.write_text(BOTH)
    program = load_input(path)
    fitting = Fitting(program, None)
    whole = fitting.whole
    assert fitting.within(whole.bytes).pipeline is None
    compile_module(program.module, program.ctx, None, "loop")
    source = emit_c(program.module)
    assert source.scratch_bytes
    assert whole.alive[-1] == f"repacked operands {source.scratch_bytes:,}"
    assert whole.bytes == source.arena_bytes + source.scratch_bytes


class Timed(Fitting):
    """A search that has tried two ways: that of fewer multiply-accumulates takes more cycles."""

    slow, fast = Fit("slow", 10, 5, (), 200), Fit("fast", 12, 9, (), 100)

    def __init__(self, program: LoadedProgram):
        super().__init__(program, None)
        self._limits = [None]
        self._found = {None: Fit(None, 90, 1, (), 300), 1: self.slow, 2: self.fast}

    def _limits_of_values(self, images: int | None) -> None:
        return None


def test_of_what_fits_the_fewest_cycles_are_taken(stem: Path) -> None:
    assert Timed(load_input(stem)).within(50) is Timed.fast
    assert Timed(load_input(stem)).within(11) is Timed.slow


class Mixed(Timed):
    """One way is not timed: its multiply-accumulates are fewer than the cycles of others, and more than theirs."""

    slow, fast = Fit("slow", 10, 5, (), 200), Fit("fast", 12, 9, (), None)


def test_ways_of_which_one_is_not_timed_are_compared_by_what_they_compute(stem: Path) -> None:
    assert Mixed(load_input(stem)).within(50) is Mixed.slow


def test_a_table_has_one_unit(stem: Path, penstock: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def techniques(_: Fitting) -> Iterator[Technique]:
        for what, cycles in (("one", 1_000_003), ("other", None), ("both", 1_000_003)):
            yield Technique(what, Fit(None, 10, 5, (), cycles))

    monkeypatch.setattr(Fitting, "techniques", techniques)
    said = penstock("fit", stem, "--machine", MACHINE)
    assert said.status == 0, said.err
    assert "multiply-accumulates" in said.out.splitlines()[0]
    assert "1,000,003" not in said.out


def test_where_it_does_not_fit_both_figures_say_their_units(stem: Path) -> None:
    with pytest.raises(UserError) as fault:
        Timed(load_input(stem)).within(9)
    least, whole = "5 multiply-accumulates, 200 modelled cycles", "1 multiply-accumulates, 300 modelled cycles"
    assert f"10 bytes, for {least} (90 bytes for {whole} without patches)" in fault.value.notes[0]


def test_a_fault_of_a_model_names_its_file(tmp_path: Path, penstock: Command) -> None:
    pools = [helper.make_node("MaxPool", [a], [b], kernel_shape=[3, 3], pads=[1] * 4) for a, b in pairwise("xzy")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 8, 8]) for name in "xy")
    path = tmp_path / "small.onnx"
    path.write_bytes(helper.make_model(helper.make_graph(pools, "net", [x], [y])).SerializeToString())
    edits = "default, +patch{limit=3} before graph-fuse"
    said = penstock("compile", path, "--emit", "loop", "-o", tmp_path / "out.mlir", "-p", edits)
    assert f'{path}: "net": error: the images do not fit 3 bytes' in said.err
    assert "note: the least that any patches here take is" in said.err


def test_the_commands_say_what_the_pipeline_takes_and_it_computes_the_same(
    stem: Path, tmp_path: Path, penstock: Command
) -> None:
    said = penstock("fit", stem, "--machine", MACHINE)
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    techniques = ["order of the model", "order of least peak", "places of copies", "patches"]
    assert [line.split("  ")[0] for line in lines[1:5]] == techniques
    assert 'memory "DTCM" of 524,288 bytes: enough with order of the model' in said.out
    size = lines[4].split()[1].replace(",", "")
    words = ["--machine", MACHINE, "--emit", "loop", "-o", tmp_path / "out.mlir"]
    done = penstock("compile", stem, *words, "--memory", size)
    assert done.status == 0, done.err
    assert f"arena: peak {int(size):,} bytes" in done.err
    plain = penstock("compile", stem, *words, "-p", done.err.partition("by: -p '")[2].partition("'")[0])
    assert f"arena: peak {int(size):,} bytes" in plain.err
    x = np.random.default_rng(0).integers(-9, 9, (1, 8, 8, 2)).astype(np.int8)
    model, program = load_input(stem), load_input(tmp_path / "out.mlir")
    (wanted,) = run_module(model.module, [x], model.ctx.weights)
    assert np.array_equal(run_module(program.module, [x], program.ctx.weights)[0], wanted)
