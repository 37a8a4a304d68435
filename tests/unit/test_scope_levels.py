# SPDX-License-Identifier: Apache-2.0
"""Scopes below scopes: the paths of data, where it is fetched how early, and that every level computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from redundancy import redundant_operands
from sampling import examples
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.dialects.remarks import Remark, listening
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_machine_toml import read_machine
from penstock.passes.analysis.kernels import machine_kernels, partition, share_on_machine
from penstock.passes.analysis.scope_paths import scope_path, stop_between
from penstock.passes.schedule.staging import place_of
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[Any]


def scope(name: str, size: int, parent: str) -> str:
    return f"""
[[scope]]
name = "{name}"
size = {size}
granule = 16
dtypes = ["f32"]
parent = "{parent}"
assumed = true
"""


def engine(name: str, unit: str, start: str, ends: Sequence[str]) -> str:
    names = ", ".join(f'"{end}"' for end in ends)
    return f"""
[[dma]]
name = "{name}"
unit = "{unit}"
from = ["{start}"]
to = [{names}]
dims = 2
latency = 10
row_overhead = 1
outstanding = 4
assumed = true
"""


BEGIN = """
[machine]
name = "two"
freq_mhz = { value = 100, assumed = true }
[[unit]]
name = "outer"
[[unit]]
name = "load"
[[unit]]
name = "execute"
[[unit]]
name = "store"
"""

INTRINSICS = """
[[intrinsic]]
name = "gemm"
unit = "execute"
behaviour = "acc[m,n] += a[m,k] * b[k,n]"
operands = [
  { name = "a", scope = "spad", dtype = "f32", role = "in", strides = "row" },
  { name = "b", scope = "spad", dtype = "f32", role = "in", strides = "row" },
  { name = "acc", scope = "acc", dtype = "f32", role = "inout", strides = "row" },
]
shape = { m = [1, 4], n = [1, 4], k = [1, 4] }
ii = 4
depth = 12
assumed = true

[[intrinsic]]
name = "zero_acc"
dma = "feed"
behaviour = "dst[i,j] = 0"
operands = [{ name = "dst", scope = "acc", dtype = "f32", role = "out", strides = "row" }]
assumed = true

[[intrinsic]]
name = "zero_spad"
dma = "feed"
behaviour = "dst[i,j] = 0"
operands = [{ name = "dst", scope = "spad", dtype = "f32", role = "out", strides = "row" }]
assumed = true

[[intrinsic]]
name = "relu"
unit = "execute"
behaviour = "acc[i,j] = max(acc[i,j], 0)"
operands = [{ name = "acc", scope = "acc", dtype = "f32", role = "inout", strides = "row" }]
shape = { i = [1, 4], j = [1, 4] }
ii = 1
depth = 4
assumed = true

[[intrinsic]]
name = "add"
unit = "execute"
behaviour = "acc[i,j] += src[i,j]"
operands = [
  { name = "src", scope = "acc", dtype = "f32", role = "in", strides = "row" },
  { name = "acc", scope = "acc", dtype = "f32", role = "inout", strides = "row" },
]
shape = { i = [1, 4], j = [1, 4] }
ii = 1
depth = 4
assumed = true
"""


def two_levels(sram: int = 65536, spad: int = 1024, acc: int = 512) -> str:
    """A machine whose operands come through `sram`, and whose results leave through it."""
    return (
        BEGIN
        + scope("sram", sram, "dram")
        + scope("spad", spad, "sram")
        + scope("acc", acc, "sram")
        + engine("fetch", "outer", "dram", ["sram"])
        + engine("put", "outer", "sram", ["dram"])
        + engine("feed", "load", "sram", ["spad", "acc"])
        + engine("drain", "store", "acc", ["sram"])
        + INTRINSICS
    )


def three_levels() -> str:
    """The same below another memory."""
    return (
        two_levels(sram=2048)
        .replace('from = ["dram"]\nto = ["sram"]', 'from = ["far"]\nto = ["sram"]')
        .replace('from = ["sram"]\nto = ["dram"]', 'from = ["sram"]\nto = ["far"]')
        .replace('parent = "dram"', 'parent = "far"')
        + scope("far", 16384, "dram")
        + engine("fetch_far", "outer", "dram", ["far"])
        + engine("put_far", "outer", "far", ["dram"])
    )


def machine(text: str) -> TargetOp:
    target, faults = read_machine("two.toml", text)
    assert not faults, "\n".join(map(str, faults))
    assert target is not None
    return target


def integers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def tensor(*shape: int) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def layer(m: int, n: int, k: int) -> tuple[str, list[Array], Array]:
    x, w, b = integers(m, m, k), integers(n, k, n), integers(k, n)
    result = tensor(m, n)
    text = f"""func.func @main(%x: {tensor(m, k)}, %w: {tensor(k, n)}, %b: {tensor(n)}) -> {result} {{
      %p = graph.matmul %x, %w : ({tensor(m, k)}, {tensor(k, n)}) -> {result}
      %s = graph.add %p, %b : ({result}, {tensor(n)}) -> {result}
      %r = graph.relu %s : {result}
      func.return %r : {result}
    }}"""
    return text, [x, w, b], np.maximum(x @ w + b, 0)


def convolution(h: int, w: int, ic: int, oc: int, k: int, pad: int) -> tuple[str, list[Array], Array]:
    x, weight = integers(h, 1, ic, h, w), integers(w, oc, ic, k, k)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weight)
    result, types = tensor(*expected.shape), f"({tensor(*x.shape)}, {tensor(*weight.shape)})"
    text = f"""func.func @main(%x: {tensor(*x.shape)}, %w: {tensor(*weight.shape)}) -> {result} {{
      %c = graph.conv %x, %w strides [1, 1] pads [{pad}, {pad}, {pad}, {pad}] dilations [1, 1] : {types} -> {result}
      func.return %c : {result}
    }}"""
    return text, [x, weight], expected


class Comparer:
    """After every pass, the program still computes the same bits."""

    def __init__(self, inputs: list[Array], expected: Array):
        self.inputs, self.expected = inputs, expected

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None: ...

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        got = run_module(module, self.inputs, WeightStore())[0]
        np.testing.assert_array_equal(got, self.expected, err_msg=f"after {module_pass.name}")


def lower(
    text: str,
    target: TargetOp,
    until: str = "accel",
    tile: str = "tile",
    levels: str = "promote-levels",
    observers: Any = (),
) -> ModuleOp:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    Rewriter.insert_op(target, InsertPoint.at_start(module.body.block))
    changed = {"tile": tile, "promote-levels": levels}
    # What is fetched in front of a kernel would be read from the scope between in any case.
    specs = [changed.get(spec, spec) for spec in pipeline(until, "two") if spec != "mem-promote"]
    run_passes(ctx, module, read_pipeline(",".join(specs)), observers=observers)
    return module


def count(module: ModuleOp, inputs: list[Array], expected: Array, seed: int | None = None) -> Counters:
    counters = Counters()
    got = run_module(module, inputs, WeightStore(), counters=counters, seed=seed)[0]
    np.testing.assert_array_equal(got, expected)
    return counters


# paths


def test_a_path_is_the_shortest_and_follows_the_engine_declared_first() -> None:
    target = machine(two_levels())
    assert scope_path(target, "dram", "spad") == ("dram", "sram", "spad")
    assert scope_path(target, "acc", "dram") == ("acc", "sram", "dram")
    assert scope_path(target, "dram", "sram") == ("dram", "sram")
    assert scope_path(target, "spad", "dram") is None
    assert scope_path(target, "acc", "spad") == ("acc", "sram", "spad")
    second = two_levels().replace("[[intrinsic]]", scope("other", 64, "dram") + "[[intrinsic]]", 1)
    ways = engine("a", "outer", "dram", ["other"]) + engine("b", "outer", "other", ["spad"])
    assert scope_path(machine(second + ways), "dram", "spad") == ("dram", "sram", "spad")
    assert scope_path(machine(second.replace("[[dma]]", ways + "[[dma]]", 1)), "dram", "spad") == (
        "dram",
        "other",
        "spad",
    )


def test_a_path_does_not_lead_over_the_chips_edge() -> None:
    text = BEGIN + scope("p", 64, "dram") + scope("q", 64, "dram")
    text += engine("a", "outer", "dram", ["p", "q"]) + engine("b", "outer", "p", ["dram"])
    assert scope_path(machine(text), "p", "q") is None


def test_where_no_path_leads_the_way_off_chip_does() -> None:
    text = BEGIN + scope("p", 64, "dram") + scope("q", 64, "dram")
    text += engine("a", "outer", "dram", ["p", "q"]) + engine("b", "outer", "p", ["dram"])
    target = machine(text)
    assert [stop_between(target, "p", end) for end in ("q", "p", "dram")] == ["dram", "dram", "dram"]
    assert stop_between(target, "q", "p") is None, "no engine leads out of it"
    assert stop_between(machine(two_levels()), "acc", "acc") == "sram", "from where a path leads back"


WITHIN_A_SCOPE = """
func.func @main(%x: memref<4xf32> {graph.name = "x"}, %y: memref<4xf32> {graph.output = "y"}) {
  func.call @k(%x, %y) : (memref<4xf32>, memref<4xf32>) -> ()
  func.return
}
func.func private @k(%x: memref<4xf32>, %y: memref<4xf32>) attributes {device = @two} {
  %seven = arith.constant 7.0 : f32
  %here = mem.buffer : memref<4xf32, "p">
  mem.copy %x to %here : memref<4xf32> to memref<4xf32, "p">
  %there = mem.buffer : memref<4xf32, "p">
  mem.copy %here[-2] to %there else %seven : memref<4xf32, "p"> to memref<4xf32, "p">
  mem.copy %there to %y : memref<4xf32, "p"> to memref<4xf32>
  func.return
}
"""


def test_a_copy_that_goes_off_chip_is_said_and_moves_what_it_did() -> None:
    text = BEGIN + scope("p", 64, "dram") + engine("a", "outer", "dram", ["p"]) + engine("b", "outer", "p", ["dram"])
    ctx = make_context()
    module = Parser(ctx, WITHIN_A_SCOPE).parse_module()
    Rewriter.insert_op(machine(text), InsertPoint.at_start(module.body.block))
    remarks: list[Remark] = []
    with listening(remarks.append):
        run_passes(ctx, module, read_pipeline("promote-levels"))
    assert [(each.kind, each.message) for each in remarks] == [
        ("missed", 'copied by way of off chip: no engine leads from "p" to "p"')
    ]
    copies = [op for op in module.walk() if isinstance(op, CopyOp)]
    assert [place_of(op.dest) for op in copies] == ["p", "dram", "p", "dram"]
    x = np.arange(1, 5, dtype=np.float32)
    np.testing.assert_array_equal(run_module(module, [x], ctx.weights)[0], [7, 7, 1, 2])


def test_what_leaves_its_result_in_a_scope_that_no_path_leaves_runs_on_the_host() -> None:
    target = machine(two_levels())
    target.dmas()["put"].detach()
    placed = partition(lower(layer(8, 8, 8)[0], target, until="tensor"))
    assert {each.device for each in placed} == {"host"}
    assert any('leaves its result in "acc", from where no engine leads off chip' in each.remark for each in placed)


def test_a_scope_that_no_path_leaves_is_an_error_that_lists_the_engines() -> None:
    target = machine(two_levels())
    module = lower(layer(8, 8, 8)[0], target, until="tensor")
    target.dmas()["put"].detach()
    with pytest.raises(UserError, match='no DMA of @two goes from "acc" to "dram", nor do several') as refusal:
        run_passes(make_context(), module, read_pipeline("tensor-to-loop,promote"))
    assert refusal.value.notes[1].startswith("its engines: @fetch from dram to sram; @feed from sram to spad, acc")


def faults_of(text: str) -> list[str]:
    return [fault.message for fault in read_machine("two.toml", text)[1]]


def test_accumulators_need_no_engine_that_leads_into_them() -> None:
    text = two_levels().replace('to = ["spad", "acc"]', 'to = ["spad"]')
    without_zero = text[: text.index('[[intrinsic]]\nname = "zero_acc"')]
    assert faults_of(without_zero) == []
    assert faults_of(without_zero.replace('name = "b", scope = "spad"', 'name = "b", scope = "acc"')) == [
        'nothing gets from off chip to the scope "acc"'
    ]
    no_feed = without_zero.replace('from = ["sram"]\nto = ["spad"]', 'from = ["sram"]\nto = ["acc"]')
    assert faults_of(no_feed) == ['nothing gets from off chip to the scope "spad"']


def test_results_may_leave_through_another_scope() -> None:
    assert faults_of(two_levels()) == []
    stuck = two_levels().replace('from = ["sram"]\nto = ["dram"]', 'from = ["sram"]\nto = ["acc"]')
    assert faults_of(stuck) == ['"acc" is written in "acc", from where nothing leads off chip']


def test_scopes_that_a_processor_fills_itself_need_no_engine() -> None:
    assert faults_of(BEGIN + scope("packed", 4096, "dram")) == []


# what is fetched how early


def test_what_fits_is_fetched_once_and_read_again_from_the_scope_between() -> None:
    text, inputs, expected = layer(24, 24, 32)
    hoisted, bounced = (
        count(lower(text, machine(two_levels()), tile="tile{sizes=8,8,8}", levels=spec), inputs, expected)
        for spec in ("promote-levels", "promote-levels{hoist=false}")
    )
    assert hoisted.bytes_between("dram", "sram") == sum(array.nbytes for array in inputs)
    assert bounced.bytes_between("dram", "sram") > 2 * hoisted.bytes_between("dram", "sram")
    for ends in (("sram", "spad"), ("sram", "acc"), ("acc", "sram"), ("sram", "dram")):
        assert hoisted.bytes_between(*ends) == bounced.bytes_between(*ends) > 0
    assert hoisted.bytes_between("sram", "dram") == expected.nbytes
    assert hoisted.bytes_between("dram", "spad") == 0


def test_the_less_a_scope_holds_the_further_in_its_buffers_move() -> None:
    text, inputs, expected = layer(24, 24, 32)
    moved: list[int] = []
    for size in (65536, 5120, 3072, 1024):
        module = lower(text, machine(two_levels(size)), tile="tile{sizes=8,8,8}")
        buffers = [op for op in module.walk() if isinstance(op, BufferOp) and op.scope == "sram"]
        assert all((op.byte_offset or 0) + op.size_in_bytes <= size for op in buffers)
        moved.append(count(module, inputs, expected).bytes_between("dram", "sram"))
    assert moved == sorted(moved)
    assert len(set(moved)) >= 3


def test_what_is_read_again_and_again_takes_the_room_before_what_is_read_once() -> None:
    text, inputs, expected = layer(24, 24, 32)
    # Tiles of whole rows of x and columns of w: of the two only the one that the inner loop walks is read again.
    module = lower(text, machine(two_levels(4480, spad=2048)), tile="tile{sizes=8,8,32}")
    fetched = count(module, inputs, expected).bytes_between("dram", "sram")
    assert fetched == sum(array.nbytes for array in inputs)


def test_a_padded_window_keeps_its_padding_wherever_its_source_is_held() -> None:
    text, inputs, expected = convolution(9, 8, 4, 8, 3, 1)
    for size in (65536, 2560, 1536):
        module = lower(text, machine(two_levels(size, spad=2048)), tile="tile{sizes=1,4,3,8,3,3,2}")
        for seed in (None, 1):
            count(module, inputs, expected, seed)


def test_what_the_kernel_also_writes_is_not_read_early() -> None:
    text = """
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%a: tensor<10x6xf32>, %b: tensor<6x7xf32>, %c: tensor<10x7xf32>) -> tensor<10x7xf32> {
      %r = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : tensor<10x6xf32>, tensor<6x7xf32>) outs(%c : tensor<10x7xf32>) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      } -> tensor<10x7xf32>
      func.return %r : tensor<10x7xf32>
    }
    func.func @main(%a: tensor<10x6xf32>, %b: tensor<6x7xf32>, %c: tensor<10x7xf32>) -> tensor<10x7xf32> {
      %r = func.call @k(%a, %b, %c) : (tensor<10x6xf32>, tensor<6x7xf32>, tensor<10x7xf32>) -> tensor<10x7xf32>
      func.return %r : tensor<10x7xf32>
    }"""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    Rewriter.insert_op(machine(two_levels()), InsertPoint.at_start(module.body.block))
    run_passes(
        ctx,
        module,
        read_pipeline(
            "assign-devices,tile{sizes=4,3,2},licm,cse,dce,tensor-to-loop,promote,promote-levels,tensorize,"
            "mem-plan,loop-to-accel"
        ),
    )
    a, b, c = integers(0, 10, 6), integers(1, 6, 7), integers(2, 10, 7)
    for seed in (None, 0, 1):
        np.testing.assert_array_equal(run_module(module, [a, b, c], WeightStore(), seed=seed)[0], c + a @ b)


def test_data_passes_as_many_scopes_as_there_are() -> None:
    text, inputs, expected = layer(24, 24, 32)
    target = machine(three_levels())
    assert scope_path(target, "dram", "spad") == ("dram", "far", "sram", "spad")
    comparer = Comparer(inputs, expected)
    module = lower(text, target, tile="tile{sizes=8,8,8}", observers=[comparer])
    counted = count(module, inputs, expected, 1)
    assert counted.bytes_between("dram", "far") == sum(array.nbytes for array in inputs)
    assert counted.bytes_between("far", "sram") > counted.bytes_between("dram", "far")
    assert counted.bytes_between("far", "dram") == counted.bytes_between("sram", "far") == expected.nbytes


def test_what_an_engine_computes_on_the_way_between_scopes_takes_its_operands_there() -> None:
    """The bias is added on the way from `sram`, and the maximum taken on the way back into it."""
    on_the_way = two_levels()[: two_levels().index('[[intrinsic]]\nname = "relu"')]
    for name, dma, behaviour, start, end, role in (
        ("feed_add", "feed", "dst[i,j] += src[i,j]", "sram", "acc", "inout"),
        ("drain_relu", "drain", "dst[i,j] = max(src[i,j], 0)", "acc", "sram", "out"),
    ):
        on_the_way += f"""
[[intrinsic]]
name = "{name}"
dma = "{dma}"
behaviour = "{behaviour}"
operands = [
  {{ name = "src", scope = "{start}", dtype = "f32", role = "in", strides = "row" }},
  {{ name = "dst", scope = "{end}", dtype = "f32", role = "{role}", strides = "row" }},
]
assumed = true
"""
    text, inputs, expected = layer(24, 24, 32)
    module = lower(text, machine(on_the_way), tile="tile{sizes=8,8,8}", observers=[Comparer(inputs, expected)])
    assert {op.intrinsic_name for op in module.walk() if isinstance(op, ExecOp)} >= {"feed_add", "drain_relu"}
    counted = count(module, inputs, expected, 1)
    assert counted.bytes_between("sram", "dram") == counted.bytes_between("acc", "sram") == expected.nbytes
    native = load_native(module).new_context()
    np.testing.assert_array_equal(native(inputs)[0], expected)
    assert native.counters.bytes_on_chip == sum(each.bytes_on_chip for each in counted.dma.values())


def test_a_machine_of_one_level_is_left_as_it_is() -> None:
    ctx = make_context()
    module = Parser(ctx, layer(8, 8, 8)[0]).parse_module()
    compile_module(module, ctx, "gemmini-fp32", "tensor")
    run_passes(ctx, module, read_pipeline("tensor-to-loop,promote"))
    before = str(module)
    assert any(isinstance(op, CopyOp) for op in module.walk())
    run_passes(ctx, module, read_pipeline("promote-levels"))
    assert str(module) == before


# machines that ship


def compiled(text: str, name: str) -> ModuleOp:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    compile_module(module, ctx, name, "accel")
    return module


@pytest.mark.parametrize(("name", "way"), [("neural-accelerator", ("dram",)), ("neural-cluster", ("dram", "sram"))])
def test_a_neural_core_runs_layers_and_convolutions(name: str, way: tuple[str, ...]) -> None:
    for text, inputs, expected in (layer(20, 24, 40), convolution(9, 8, 6, 10, 3, 1)):
        module = compiled(text, name)
        assert share_on_machine(partition(module)) == 1.0
        for seed in (0,):
            counted = count(module, inputs, expected, seed)
            assert counted.bytes_between(way[-1], "weight") > 0
            assert counted.bytes_between(way[-1], "neural") > 0
            assert (counted.bytes_between("dram", "neural") > 0) == (way == ("dram",))


def test_a_machine_without_intrinsics_leaves_everything_on_the_host_and_says_why() -> None:
    text, inputs, expected = layer(8, 8, 8)
    module = compiled(text, "epiphany-iii")
    placements = partition(module)
    assert share_on_machine(placements) == 0.0
    assert {placement.remark for placement in placements} == {"the machine has no intrinsics"}
    assert not count(module, inputs, expected).dma


def test_the_report_of_a_machine_without_intrinsics_says_why(penstock: Command, tmp_path: Path) -> None:
    source = tmp_path / "layer.mlir"
    source.write_text(layer(8, 8, 8)[0])
    finished = penstock("compile", source, "--machine", "epiphany-iii", "--emit", "accel", "-o", tmp_path / "out.mlir")
    assert finished.status == 0
    assert "epiphany-iii: 0.0% of 512 multiply-accumulates" in finished.err
    assert "the machine has no intrinsics" in finished.err


# every level computes the same


def check(text: str, inputs: list[Array], expected: Array, sram: int, spad: int, acc: int) -> None:
    module = lower(text, machine(two_levels(sram, spad, acc)), observers=[Comparer(inputs, expected)])
    assert any(isinstance(op, ExecOp) for op in module.walk()), "nothing ran on the machine"
    counted = count(module, inputs, expected)
    for seed in range(2):
        count(module, inputs, expected, seed)
    bounced = lower(text, machine(two_levels(sram, spad, acc)), levels="promote-levels{hoist=false}")
    most = count(bounced, inputs, expected)
    assert counted.bytes_between("dram", "sram") <= most.bytes_between("dram", "sram")
    native = load_native(module).new_context()
    np.testing.assert_array_equal(native(inputs)[0], expected)
    assert native.counters.bytes_in == counted.bytes_in
    assert native.counters.bytes_on_chip == sum(each.bytes_on_chip for each in counted.dma.values())


def capacities(sram: list[int], spad: list[int]) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(st.sampled_from(sram), st.sampled_from(spad), st.sampled_from([128, 256, 1024]))


@examples(6)
@given(
    st.integers(1, 24), st.integers(1, 24), st.integers(1, 24), capacities([512, 1024, 4096, 16384], [256, 512, 2048])
)
def test_a_random_layer_is_the_same_at_every_level(m: int, n: int, k: int, sizes: tuple[int, int, int]) -> None:
    check(*layer(m, n, k), *sizes)


@examples(5)
@given(
    st.integers(3, 8),
    st.integers(3, 8),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([(1, 0), (3, 0), (3, 1)]),
    capacities([3072, 4096, 16384], [2048, 4096]),
)
def test_a_random_convolution_is_the_same_at_every_level(
    h: int, w: int, ic: int, window: tuple[int, int], sizes: tuple[int, int, int]
) -> None:
    check(*convolution(h, w, ic, 6, *window), *sizes)


def without_dependencies(op: DmaOp | ExecOp) -> DmaOp | ExecOp:
    if isinstance(op, ExecOp):
        return ExecOp(op.intrinsic_name, op.extents.get_values(), list(op.maps), list(op.buffers))
    return DmaOp(
        op.source,
        op.dest,
        op.engine.data,
        source_offsets=op.mixed_source_offsets() if op.window_side == "source" else (),
        dest_offsets=op.mixed_dest_offsets() if op.window_side == "dest" else (),
    )


def waiting(module: ModuleOp) -> list[DmaOp | ExecOp]:
    return [op for op in module.walk() if isinstance(op, DmaOp | ExecOp) and op.dependencies]


def is_noticed(module: ModuleOp, inputs: list[Array], expected: Array) -> bool:
    for seed in range(12):
        try:
            got = run_module(module, inputs, WeightStore(), seed=seed)[0]
        except UserError:
            return True
        if not np.array_equal(got, expected):
            return True
    return False


@pytest.mark.parametrize("sram", [1024, 65536])
def test_every_token_between_the_scopes_is_needed(sram: int) -> None:
    """No token follows from others; without those of one command some order of the commands computes something else."""
    text, inputs, expected = layer(16, 16, 16)
    reference = lower(text, machine(two_levels(sram)), tile="tile{sizes=8,8,8}")
    target, (kernel,) = machine_kernels(reference)
    assert target is not None
    assert redundant_operands(kernel, target) == []
    assert len(waiting(reference)) > 6
    for number, command in enumerate(waiting(reference)):
        mutant = reference.clone()
        found = waiting(mutant)[number]
        Rewriter.replace_op(found, without_dependencies(found))
        assert is_noticed(mutant, inputs, expected), str(command)
