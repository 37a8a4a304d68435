"""`order-ops` where it must not move anything: what it cannot see, and what a later pass is going to change."""

from __future__ import annotations

import pytest

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.pass_manager import read_pipeline, run_passes

HEAD = """
func.func private @double(memref<16xf32>, memref<64xf32>)
func.func private @sum(memref<64xf32>, memref<16xf32>)
"""
BRANCHES = """
func.func @main(%x: memref<16xf32>, %y: memref<16xf32>, %z: memref<16xf32>) {
  %a = memref.alloc() : memref<64xf32>
  func.call @double(%x, %a) : (memref<16xf32>, memref<64xf32>) -> ()
  %b = memref.alloc() : memref<64xf32>
  FIRST
  func.call @double(%y, %b) : (memref<16xf32>, memref<64xf32>) -> ()
  func.call @sum(%a, %x) : (memref<64xf32>, memref<16xf32>) -> ()
  SECOND
  func.call @sum(%b, %z) : (memref<64xf32>, memref<16xf32>) -> ()
  func.return
}
"""
GLOBAL = (
    '"memref.global"() <{sym_name = "kept", sym_visibility = "private", type = memref<64xf32>, '
    "initial_value = dense<1.0> : tensor<64xf32>}> : () -> ()"
)


def texts(text: str) -> tuple[str, str]:
    """The program before and after the pass."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("program.mlir", text)).module
    before = str(module)
    run_passes(ctx, module, read_pipeline("order-ops"))
    return before, str(module)


def test_the_branches_are_executed_one_after_the_other() -> None:
    before, after = texts(HEAD + BRANCHES.replace("FIRST", "").replace("SECOND", ""))
    assert before != after


def test_what_goes_through_a_global_keeps_its_order() -> None:
    read = """%g = "memref.get_global"() <{name = @kept}> : () -> memref<64xf32>
    mem.copy %g to %b : memref<64xf32> to memref<64xf32>"""
    written = "mem.copy %a to %g : memref<64xf32> to memref<64xf32>"
    before, after = texts(GLOBAL + HEAD + BRANCHES.replace("FIRST", read).replace("SECOND", written))
    assert before == after


@pytest.mark.parametrize("count", [2, 4])
def test_buffers_of_iterations_that_run_at_once_are_left_to_later_passes(count: int) -> None:
    loop = f"""scf.forall (%i) in ({count}) {{
    %t = memref.alloc() : memref<64xf32>
    func.call @double(%x, %t) : (memref<16xf32>, memref<64xf32>) -> ()
    scf.forall.in_parallel {{
    }}
  }}"""
    before, after = texts(HEAD + BRANCHES.replace("FIRST", loop).replace("SECOND", ""))
    assert before == after
