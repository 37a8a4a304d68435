# SPDX-License-Identifier: Apache-2.0
"""What is seen of kernels before they are tiled."""

from __future__ import annotations

from pathlib import Path

from penstock.passes.planning.traffic_bounds import best_tiling, square_root
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.simulator.run import run_program
from penstock.runtime.simulator.workloads import Workloads


def workloads_of(tmp_path: Path, text: str, machine: str) -> Workloads:
    path = tmp_path / "kernel.mlir"
    path.write_text(text)
    program = load_input(path)
    attach_machine(program.module, machine)
    found = Workloads()
    compile_module(program.module, program.ctx, until="tensor", observers=[found])
    return found


def matmul(m: int, n: int, k: int) -> str:
    a, b, c = (f"tensor<{rows}x{columns}xf32>" for rows, columns in ((m, k), (k, n), (m, n)))
    return f"""
    func.func @main(%a: {a} {{graph.name = "a"}}, %b: {b} {{graph.name = "b"}}) -> ({c} {{graph.name = "c"}}) {{
      %0 = graph.matmul %a, %b : ({a}, {b}) -> {c}
      %c = graph.relu %0 : {c}
      func.return %c : {c}
    }}
    """


def convolution(stride: int, window: int, padding: int) -> str:
    size = (16 + 2 * padding - window) // stride + 1
    x, w, y = "tensor<1x8x16x16xf32>", f"tensor<12x8x{window}x{window}xf32>", f"tensor<1x12x{size}x{size}xf32>"
    return f"""
    func.func @main(%x: {x} {{graph.name = "x"}}, %w: {w} {{graph.name = "w"}}) -> ({y} {{graph.name = "y"}}) {{
      %y = graph.conv %x, %w strides [{stride}, {stride}] pads [{padding}, {padding}, {padding}, {padding}]
        dilations [1, 1] group 1 layout "NCHW" : ({x}, {w}) -> {y}
      func.return %y : {y}
    }}
    """


def test_a_matrix_product_is_one_and_has_a_bound(tmp_path: Path) -> None:
    found = workloads_of(tmp_path, matmul(48, 32, 64), "gemmini-fp32")
    ((name, workload),) = found.found.items()
    contraction = found.of(name, ["dram"] * 3)
    assert contraction is not None
    assert contraction.macs == 48 * 32 * 64
    assert workload.sizes == (48 * 64 * 4, 64 * 32 * 4, 48 * 32 * 4)
    assert contraction.compulsory == sum(workload.sizes)
    bound = square_root(contraction, 64, 4)
    assert bound is not None
    assert bound.is_bound
    assert bound.bytes == (2 * 48 * 32 * 64 // 8 - 2 * 64) * 4


def test_of_a_convolution_windows_padding_and_strides_are_known(tmp_path: Path) -> None:
    found = workloads_of(tmp_path, convolution(1, 3, 1), "gemmini-fp32")
    contraction = next(iter(found.found.values())).contraction
    assert contraction.macs == 12 * 8 * 9 * 16 * 16
    assert contraction.compulsory == (8 * 16 * 16 + 12 * 8 * 9 + 12 * 16 * 16) * 4
    estimate = square_root(contraction, 1024, 4)
    assert estimate is not None
    assert not estimate.is_bound
    whole = best_tiling(contraction, {"spad": 1 << 20, "acc": 1 << 20})
    assert whole is not None
    assert whole.bytes == contraction.compulsory


def test_what_a_strided_window_skips_is_not_compulsory(tmp_path: Path) -> None:
    found = workloads_of(tmp_path, convolution(2, 1, 0), "gemmini-fp32")
    contraction = next(iter(found.found.values())).contraction
    assert contraction.compulsory == (8 * 8 * 8 + 12 * 8 + 12 * 8 * 8) * 4
    bound = square_root(contraction, 64, 4)
    assert bound is not None
    assert bound.is_bound


def test_what_stays_on_chip_moves_nothing(tmp_path: Path) -> None:
    found = workloads_of(tmp_path, matmul(16, 16, 16), "gemmini-fp32")
    name = next(iter(found.found))
    assert found.of(f"{name}_on_chip", ["dram"] * 3) == found.of(name, ["dram"] * 3)
    # A factor or the product on chip leaves the search for tiles without a sense.
    assert found.of(f"{name}_on_chip_2", ["spad", "dram", "dram"]) is None
    assert found.of(name, ["dram", "dram", "spad"]) is None
    assert found.of(name, ["dram", "dram"]) is None
    assert found.of("another", ["dram"] * 3) is None


def test_kernels_without_a_contraction_have_no_workload(tmp_path: Path) -> None:
    text = """
    func.func @main(%x: tensor<64xf16> {graph.name = "x"}) -> (tensor<64xf16> {graph.name = "y"}) {
      %y = graph.add %x, %x : (tensor<64xf16>, tensor<64xf16>) -> tensor<64xf16>
      func.return %y : tensor<64xf16>
    }
    """
    assert workloads_of(tmp_path, text, "rapid-core-like").found == {}


def test_it_does_not_matter_which_pass_tiles(tmp_path: Path) -> None:
    path = tmp_path / "kernel.mlir"
    path.write_text(matmul(48, 32, 64))
    program = load_input(path)
    attach_machine(program.module, "gemmini-fp32")
    run_passes(program.ctx, program.module, read_pipeline("graph-fuse,graph-to-tensor,assign-devices"))
    found = Workloads()
    for each in read_pipeline("value-dce,tile,value-dce,tensor-to-loop"):
        # What tiles is not asked for its name: it could be a plug-in's.
        found.before(read_pipeline("cse")[0], program.module)
        run_passes(program.ctx, program.module, [each])
    assert found.found == workloads_of(tmp_path, matmul(48, 32, 64), "gemmini-fp32").found != {}


def test_traffic_is_never_below_what_is_compulsory(tmp_path: Path) -> None:
    path = tmp_path / "kernel.mlir"
    path.write_text(convolution(1, 3, 1))
    program = load_input(path)
    found = Workloads()
    compile_module(program.module, program.ctx, "gemmini-fp32", observers=[found])
    for kernel in run_program(program.module, found).kernels:
        assert kernel.traffic.least is not None
        assert kernel.traffic.bytes >= kernel.traffic.least
