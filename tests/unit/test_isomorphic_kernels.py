# SPDX-License-Identifier: Apache-2.0
"""Kernels that are copied from what became of an isomorphic one, and those that are not."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import location_of, render_location
from penstock.dialects.machine import TargetOp, find_target
from penstock.dialects.remembered import Remembered
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.isomorphic_kernels import rewrite_kernels, structure_of
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline

KERNEL = """
func.func private @{name}(%x: memref<4x{size}xf32>) attributes {{crossing = {crossing} : i64}} {{
  %{value} = mem.buffer at 0 : memref<4x{size}xf32, "spad"> loc("{place}")
  mem.copy %x to %{value} : memref<4x{size}xf32> to memref<4x{size}xf32, "spad"> loc("{place}")
  func.return
}}
"""


def kernel(name: str, *, size: int = 4, value: str = "a", crossing: int = 0) -> str:
    return KERNEL.format(name=name, size=size, value=value, crossing=crossing, place=f"node of {name}")


def functions(*texts: str) -> tuple[ModuleOp, list[FuncOp]]:
    module = parse_text(make_context(), SourceText("kernels.mlir", "".join(texts))).module
    return module, [op for op in module.ops if isinstance(op, FuncOp)]


def with_machine(module: ModuleOp, machine: str) -> TargetOp:
    attach_machine(module, machine)
    target = find_target(module)
    assert target is not None
    return target


def rewritten(
    *texts: str,
    context: dict[str, int] | None = None,
    remembered: Remembered | None = None,
    machine: str = "gemmini-fp32",
    what: str = "cse",
) -> tuple[list[FuncOp], list[str]]:
    """The functions, in which every copy is erased and a remark is written; and which were not copied from another."""
    module, found = functions(*texts)
    target = with_machine(module, machine)
    (module_pass,) = read_pipeline(what)
    ctx = make_context()
    ctx.remembered = remembered
    seen: list[str] = []

    def rewrite(function: FuncOp) -> None:
        seen.append(function.sym_name.data)
        function.attributes["remark"] = StringAttr("erased")
        for op in list(function.body.block.ops):
            if op.name == "mem.copy":
                op.detach()
                op.erase()

    def key(function: FuncOp) -> Hashable:
        return (context or {}).get(function.sym_name.data)

    rewrite_kernels(ctx, found, target, module_pass, rewrite, key)
    module.verify()
    return found, seen


def test_a_kernel_that_differs_in_name_crossing_and_locations_is_copied() -> None:
    found, seen = rewritten(kernel("f"), kernel("g", crossing=8))
    assert seen == ["f"]
    assert [op.name for op in found[1].body.block.ops] == ["mem.buffer", "func.return"]
    assert [str(each.attributes["remark"]) for each in found] == ['"erased"', '"erased"']
    assert str(found[1].attributes["crossing"]) == "8 : i64"
    places = [location_of(next(iter(each.body.block.ops))) for each in found]
    assert places == ['kernels.mlir:3:3 ("node of f")', 'kernels.mlir:9:3 ("node of g")']
    arguments = [render_location(each.body.block.args[0].location) for each in found]
    assert arguments == ["kernels.mlir:2:22", "kernels.mlir:8:22"]


def test_a_kernel_of_another_program_is_copied_where_programs_share_what_is_remembered() -> None:
    remembered = Remembered()
    assert rewritten(kernel("f"), remembered=remembered)[1] == ["f"]
    found, seen = rewritten("\n", kernel("g", crossing=8), remembered=remembered)
    assert seen == []
    assert [op.name for op in found[0].body.block.ops] == ["mem.buffer", "func.return"]
    assert str(found[0].attributes["remark"]) == '"erased"'
    assert location_of(next(iter(found[0].body.block.ops))) == 'kernels.mlir:4:3 ("node of g")'
    assert rewritten(kernel("g"))[1] == ["g"]
    assert rewritten(kernel("g"), remembered=remembered, machine="vta-pynq")[1] == ["g"]
    assert rewritten(kernel("g"), remembered=remembered, what="dce")[1] == ["g"]
    assert rewritten(kernel("g"), remembered=remembered, context={"g": 1})[1] == ["g"]


def test_a_machine_differs_from_another_by_the_names_of_its_parts() -> None:
    texts: list[object] = []
    for name in ("spad", "other"):
        module = ModuleOp([])
        target = with_machine(module, "gemmini-fp32")
        scope = next(op for op in target.walk() if op.name == "machine.scope")
        scope.properties["sym_name"] = StringAttr(name)
        texts.append(structure_of(target, located=False)[0])
    assert texts[0] != texts[1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dialects.remembered.MOST", 2)
    remembered = Remembered()
    for number in (1, 2):
        remembered.keep(number, str(number))
    assert remembered.get(1) == "1"
    remembered.keep(3, "3")
    assert [remembered.get(number) for number in (1, 2, 3)] == ["1", None, "3"]


def test_what_decides_otherwise_is_rewritten_by_itself() -> None:
    assert rewritten(kernel("f"), kernel("g", size=8))[1] == ["f", "g"]
    assert rewritten(kernel("f"), kernel("g", value="b"))[1] == ["f", "g"]
    assert rewritten(kernel("f"), kernel("g"), kernel("h"), context={"g": 1})[1] == ["f", "g"]


def test_names_of_values_count_only_where_text_is_made() -> None:
    _, (f, g, h) = functions(kernel("f"), kernel("g", value="b"), kernel("h", size=8))
    assert structure_of(f)[0] != structure_of(g)[0]
    assert structure_of(f, names=False)[0] == structure_of(g, names=False)[0]
    assert structure_of(f, names=False)[0] != structure_of(h, names=False)[0]
