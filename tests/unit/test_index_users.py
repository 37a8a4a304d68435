# SPDX-License-Identifier: Apache-2.0
"""Every analysis that reads indices understands remainders, quotients, minima and affine maps of loop counters."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import CopyOp, SlotOp
from penstock.dialects.weights import WeightStore
from penstock.passes.accel.unrolling import unroll
from penstock.passes.analysis.commands.hazards.induction import _steady  # pyright: ignore[reportPrivateUsage]
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.schedule.footprint import footprint, source_of
from penstock.passes.schedule.ordering.accesses import IterationReader
from penstock.passes.tensor.bufferization.assignment import disjoint, slice_of, whole
from penstock.passes.toolchain import find_compiler
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes

CONTEXT = make_context()

OFFSETS = {
    "remui": "%p = arith.remui %i, %upper : index",
    "remsi": "%p = arith.remsi %i, %upper : index",
    "divui": "%q = arith.divui %i, %step : index\n%p = arith.muli %q, %step : index",
    "divsi": "%q = arith.divsi %i, %step : index\n%p = arith.muli %q, %step : index",
    "floordivsi": "%q = arith.floordivsi %i, %step : index\n%p = arith.muli %q, %step : index",
    "ceildivsi": "%q = arith.ceildivsi %i, %step : index\n%p = arith.muli %q, %step : index",
    "minsi": "%p = arith.minsi %i, %upper : index",
    "maxsi": "%p = arith.maxsi %i, %lower : index",
    "minui": "%p = arith.minui %i, %upper : index",
    "index_cast": "%n = arith.index_cast %i : index to i32\n%p = arith.index_cast %n : i32 to index",
    "apply": "%p = affine.apply affine_map<(d)[s] -> (d floordiv 16 * 16 + s mod 1)>(%i)[%i]",
    "min": "%p = affine.min affine_map<(d)[s] -> (d, s + 1)>(%i)[%upper]",
    "min of a constant": "%p = affine.min affine_map<(d) -> (64, d)>(%i)",
}
"""Each is %i, for the counter %i of a loop from 0 to 64 in steps of 16."""

WITHIN_A_RING = {
    "remui": "%p = arith.remui %n, %ring : index",
    "remsi": "%p = arith.remsi %n, %ring : index",
    "apply": "%p = affine.apply affine_map<(d) -> (d mod 4)>(%n)",
    "divui": """%s = arith.muli %n, %ring : index
    %q = arith.divui %s, %ring : index
    %p = arith.remui %q, %ring : index""",
    "minsi": "%q = arith.minsi %n, %many : index\n%p = arith.remui %q, %ring : index",
}
"""The slot %n modulo 4, for the counter %n of a loop from 0 to 40."""


def kernel(offset: str) -> str:
    return f"""func.func @main(%x: memref<64xf32>, %y: memref<64xf32> {{graph.output = "y"}}) {{
      func.call @k(%x, %y) : (memref<64xf32>, memref<64xf32>) -> ()
      func.return
    }}
    func.func private @k(%x: memref<64xf32>, %y: memref<64xf32>) attributes {{device = @gemmini_fp32}} {{
      %lower = arith.constant 0 : index
      %upper = arith.constant 64 : index
      %step = arith.constant 16 : index
      scf.for %i = %lower to %upper step %step {{
        {offset}
        %a = mem.buffer : memref<16xf32, "spad">
        mem.copy %x[%p] to %a : memref<64xf32> to memref<16xf32, "spad">
        mem.copy %a to %y[%p] : memref<16xf32, "spad"> to memref<64xf32>
      }}
      func.return
    }}"""


def compiled(text: str, passes: str) -> ModuleOp:
    module = Parser(CONTEXT, text).parse_module()
    attach_machine(module, "gemmini-fp32")
    run_passes(CONTEXT, module, read_pipeline(passes))
    return module


@pytest.mark.parametrize("name", OFFSETS)
def test_kernels_compile_to_commands_and_count_their_bytes(name: str) -> None:
    passes = "multi-buffer,mem-plan,loop-to-accel,accel-pipeline,mem-verify,accel-check-hazards"
    module = compiled(kernel(OFFSETS[name]), passes)
    counters = Counters()
    x = np.arange(64, dtype=np.float32)
    (y,) = run_module(module, [x], WeightStore(), counters=counters)
    assert y.tolist() == x.tolist()
    static = traffic(module)
    assert (static.bytes_in, static.bytes_out) == (256, 256)
    assert static.commands == {name: count.commands for name, count in counters.dma.items()}


@pytest.mark.parametrize("name", OFFSETS)
def test_kernels_run_as_c(name: str) -> None:
    try:
        find_compiler()
    except UserError:
        pytest.skip("no C compiler")
    x = np.arange(64, dtype=np.float32)
    (y,) = load_native(compiled(kernel(OFFSETS[name]), "mem-plan")).run([x])
    assert y.tolist() == x.tolist()


def parts(name: str) -> tuple[scf.ForOp, CopyOp, SSAValue]:
    """The loop, its first copy and the offset of that."""
    module = Parser(CONTEXT, kernel(OFFSETS[name])).parse_module()
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    copy = next(op for op in module.walk() if isinstance(op, CopyOp))
    (offset,) = copy.mixed_source_offsets()
    assert isinstance(offset, SSAValue)
    return loop, copy, offset


@pytest.mark.parametrize("name", OFFSETS)
def test_a_footprint_is_what_all_iterations_read(name: str) -> None:
    loop, copy, _ = parts(name)
    held = footprint(source_of(copy), loop)
    assert held is not None
    assert held.extents == (64,)
    assert [origin.constant for origin in held.origins] == [0]


@pytest.mark.parametrize("name", OFFSETS)
def test_an_offset_is_aligned(name: str) -> None:
    assert AffineIndex.of(parts(name)[2]).is_multiple_of(16)


@pytest.mark.parametrize("name", OFFSETS)
def test_slices_at_a_distance_are_disjoint(name: str) -> None:
    _, copy, offset = parts(name)
    place = whole(copy.source, (128,))
    at = AffineIndex.of(offset)
    assert disjoint(*(slice_of(place, [start], [16], [1], [0]) for start in (at, at + 16)))
    assert not disjoint(*(slice_of(place, [start], [16], [1], [0]) for start in (at, at + 15)))


def ringed(index: str) -> func.FuncOp:
    text = f"""func.func @k(%x: memref<64xf32>) {{
      %zero = arith.constant 0 : index
      %many = arith.constant 40 : index
      %one = arith.constant 1 : index
      %ring = arith.constant 4 : index
      %r = mem.ring 4 at 0 : !mem.ring<memref<16xf32, "spad">>
      scf.for %n = %zero to %many step %one {{
        {index}
        %a = mem.slot %r[%p] : !mem.ring<memref<16xf32, "spad">>
        %v = memref.subview %x[%p] [16] [1] : memref<64xf32> to memref<16xf32, strided<[1], offset: ?>>
      }}
      func.return
    }}"""
    function = Parser(CONTEXT, text).parse_module().body.block.first_op
    assert isinstance(function, func.FuncOp)
    return function


@pytest.mark.parametrize("name", WITHIN_A_RING)
def test_iterations_are_periodic(name: str) -> None:
    loop = next(op for op in ringed(WITHIN_A_RING[name]).walk() if isinstance(op, scf.ForOp))
    found = _steady(loop)
    assert found is not None
    assert (found.period, found.first, found.last) == (4, 0, 0)


def test_iterations_with_an_index_from_memory_are_not_periodic() -> None:
    loaded = "%c = memref.alloc() : memref<index>\n%p = memref.load %c[] : memref<index>"
    loop = next(op for op in ringed(loaded).walk() if isinstance(op, scf.ForOp))
    assert _steady(loop) is None


@pytest.mark.parametrize("name", [name for name in WITHIN_A_RING if name != "apply"])
def test_slots_are_numbered_by_iterations(name: str) -> None:
    slot = next(op for op in ringed(WITHIN_A_RING[name]).walk() if isinstance(op, SlotOp))
    number = IterationReader().number(slot.index, 4)
    assert number is not None
    assert (number.constant, list(number.terms.values())) == (0, [1])


@pytest.mark.parametrize("name", WITHIN_A_RING)
def test_a_loop_is_unrolled(name: str) -> None:
    function = ringed(WITHIN_A_RING[name])
    unroll(function)
    offsets = [op.offsets[0] for op in function.walk() if isinstance(op, memref.SubviewOp)]
    assert [AffineIndex.of(offset).constant for offset in offsets] == [n % 4 for n in range(40)]
