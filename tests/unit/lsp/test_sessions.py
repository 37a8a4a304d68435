# SPDX-License-Identifier: Apache-2.0
"""`penstock-lsp` as a process, and a client that speaks to it as editors do."""

from __future__ import annotations

from pathlib import Path

import pytest
from language_client import Session, covered, in_session, place
from lsprotocol import types

SMALL = """machine.target @small frequency 100 {
  machine.scope @sram size 1024 granule 16 dtypes [f32]
}
func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {
  %a = mem.buffer at 128 : memref<64xf32, "sram">
  mem.copy %x to %a : memref<64xf32> to memref<64xf32, "sram">
  mem.copy %a to %y : memref<64xf32, "sram"> to memref<64xf32>
  func.return
}
"""
KERNELS = """# A clef, 𝄞, is two units of UTF-16.
function half(v) = v * 0.5

kernel scaled(f32 x[N, M]) -> (f32 y[N, M]) {
    total[i] = sum(j, x[i, j])
    y[i, j] = half(x[i, j]) + total[i]
}
"""
MACHINE = """[machine]
name = "tiny"
freq_mhz = 100
source = "own"

[sources]
own = "a note"

[[scope]]
name = "sram"
size = 1024
granule = 16
banks = 1
dtypes = ["f32"]
parent = "dram"
source = "own"

[[unit]]
name = "load"
"""


def messages(found: list[types.Diagnostic], text: str) -> list[tuple[str, str]]:
    return [(covered(text, each.range), each.message) for each in found]


def test_ir_while_it_is_typed(tmp_path: Path) -> None:
    async def body(session: Session) -> None:
        assert await session.checked("a.mlir", SMALL) == []

        hover = await session.hover("a.mlir", place(SMALL, "%a"))
        for line in (
            '%a : memref<64xf32, "sram">',
            "- result of `mem.buffer`",
            "- 256 bytes",
            "- in `sram`: bytes 128 to 384",
            "- alive in steps 2 to 3: from `mem.copy` of line 6 to `mem.copy` of line 7",
            "- used 2 times, lines 6 to 7",
        ):
            assert line in hover.splitlines()
        hover = await session.hover("a.mlir", place(SMALL, "mem.copy"))
        assert "Copy a box between two memrefs; when it ends, the data is there." in hover
        assert "| `padding` | optional operand |" in hover
        assert "1,024 bytes, granule 16" in await session.hover("a.mlir", place(SMALL, '"sram"'))

        (scope,) = await session.definition("a.mlir", place(SMALL, '"sram"'))
        assert covered(SMALL, scope.range) == "@sram"
        (definition,) = await session.definition("a.mlir", place(SMALL, "%a", nth=2))
        assert definition.range.start == place(SMALL, "%a")
        found = await session.references("a.mlir", place(SMALL, "%a", nth=1))
        assert [each.range.start for each in found] == [place(SMALL, "%a", nth=nth) for nth in range(3)]
        machine, main = await session.symbols("a.mlir")
        assert (machine.name, [each.name for each in machine.children or ()]) == ("small", ["sram"])
        assert (main.name, main.kind) == ("main", types.SymbolKind.Function)

        # Behind a fault the text is read on, and what is around it is known.
        typed = SMALL.replace("mem.copy %a to", "mem.cop %a to").replace("func.return", "func.return %never : i32")
        assert messages(await session.checked("a.mlir", typed), typed) == [
            ("mem.cop", 'the operation "mem.cop" is not registered\nnote: did you mean "mem.copy"?'),
            ("%never", "use of the undefined value %never"),
        ]
        assert "alive" not in await session.hover("a.mlir", place(typed, "%a"))
        twice = SMALL.replace("func.return", '%a = "test.op"() : () -> i32')
        (diagnostic,) = await session.checked("a.mlir", twice)
        (related,) = list(diagnostic.related_information or ())
        assert (diagnostic.message, related.message) == ("SSA value %a is already defined", "defined here")
        assert related.location.range.start == place(twice, "%a")

        # What is completed is what stands in the text now.
        partial = SMALL.replace("func.return", "mem.bu")
        session.change("a.mlir", partial)
        items = await session.completion("a.mlir", place(partial, "mem.bu", nth=1, behind=True))
        assert {"mem.buffer", "mem.copy", "mem.ring"} <= {each.label for each in items}
        (copy,) = [each for each in items if each.label == "mem.copy"]
        assert isinstance(copy.text_edit, types.TextEdit)
        assert covered(partial, copy.text_edit.range) == "mem.bu"
        items = await session.completion("a.mlir", place(partial, "mem.copy %", behind=True))
        assert {each.label: each.detail for each in items} == {"%x": "memref<64xf32>", "%y": "memref<64xf32>",
                                                              "%a": 'memref<64xf32, "sram">'}  # fmt: skip
        items = await session.completion("a.mlir", place(partial, "mem.copy %x to %a ", behind=True))
        assert {"else", "padding"} & {each.label for each in items}

    in_session(tmp_path, body)


def test_what_does_not_verify_is_underlined_in_every_function(tmp_path: Path) -> None:
    text = """func.func @f(%x: i32) -> i32 {
  %y = "arith.addi"(%x) : (i32) -> i32
  func.return %y : i32
}
func.func @g(%x: i32) -> i64 {
  func.return %x : i32
}
"""

    async def body(session: Session) -> None:
        found = messages(await session.checked("a.mlir", text), text)
        assert [words for words, _ in found] == ['%y = "arith.addi"(%x) : (i32) -> i32', "func.return %x : i32"]
        typed = text + "func.func @h() {\n  func.retur\n}\n"
        found = messages(await session.checked("a.mlir", typed), typed)
        assert [words for words, _ in found[:1]] == ["func.retur"]
        assert len(found) == 3
        # No file of weights is there.
        named = 'module attributes {graph.weights = "none.safetensors"} {\n  func.func private @f()\n}\n'
        ((_, message),) = messages(await session.checked("b.mlir", named), named)
        assert "note: at" in message

    in_session(tmp_path, body)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_kernels_while_they_are_typed(tmp_path: Path, encoding: str) -> None:
    def at(words: str, *, nth: int = 0) -> types.Position:
        return place(KERNELS, words, nth=nth)

    async def body(session: Session) -> None:
        assert await session.checked("a.pk", KERNELS) == []
        hover = await session.hover("a.pk", at("total[i]", nth=1))
        assert "- local of `scaled`" in hover
        assert "`tensor<64xf32>` for N = 64, M = 64" in hover
        assert "f32 x[N, M]" in await session.hover("a.pk", at("x[i, j]"))
        assert "language" in await session.hover("a.pk", at("sum"))
        (definition,) = await session.definition("a.pk", at("half(x"))
        assert definition.range.start == at("half(v")
        found = await session.references("a.pk", at("N, M"))
        assert [each.range.start for each in found] == [at("N, M"), at("N, M", nth=1)]
        assert [each.name for each in await session.symbols("a.pk")] == ["half", "scaled"]
        labels = {each.label for each in await session.completion("a.pk", at("+ total"))}
        assert {"half", "total", "x", "sum", "f32", "grid"} <= labels

        typed = KERNELS.replace("half(x[i, j])", "half(x[i, j]").replace("v * 0.5", "v * * 0.5")
        found = messages(await session.checked("a.pk", typed), typed)
        assert [words for words, _ in found] == ["}", "*"] or [words for words, _ in found] == ["*", "}"]
        typed = KERNELS.replace("total[i]\n", "total[i, j]\n")
        ((words, message),) = messages(await session.checked("a.pk", typed), typed)
        assert words == "total"
        assert "with N = 64, M = 64, and with other sizes too" in message

    in_session(tmp_path, body, encoding)


def test_a_machine_while_it_is_typed(tmp_path: Path) -> None:
    extended = """[machine]
extends = "tiny.toml"
name = "tinier"

[[scope]]
name = "sram"
size = 512
source = "own"

[[intrinsic]]
unit = "load"
"""

    async def body(session: Session) -> None:
        found = await session.checked("tiny.toml", MACHINE)
        assert messages(found, MACHINE) == []
        assert "bytes" in (await session.hover("tiny.toml", place(MACHINE, "size"))).lower()
        assert "a note" in await session.hover("tiny.toml", place(MACHINE, '"own"', nth=1))
        (source,) = await session.definition("tiny.toml", place(MACHINE, '"own"', nth=1))
        assert source.range.start == place(MACHINE, "own =")
        assert [(each.name, each.detail) for each in await session.symbols("tiny.toml")][1:] == [
            ("sources", "sources"), ("sram", "scope"), ("load", "unit")
        ]  # fmt: skip

        typed = MACHINE.replace("granule = 16", "granul = 16").replace('parent = "dram"', 'parent = "dran"')
        found = messages(await session.checked("tiny.toml", typed), typed)
        assert ("granul", 'unknown key "granul" in [[scope]]\nnote: did you mean "granule"?') in found
        assert len(found) >= 2
        typed = MACHINE + "\n[[scope]]\nna"
        session.change("tiny.toml", typed)
        items = await session.completion("tiny.toml", place(typed, "[[scope]]\nna", behind=True))
        assert {"name", "size", "granule", "source", "assumed"} <= {each.label for each in items}

        # A name may be of the machine that this one extends.
        (tmp_path / "tiny.toml").write_text(MACHINE)
        session.open("tinier.toml", extended)
        (unit,) = await session.definition("tinier.toml", place(extended, '"load"'))
        assert (unit.uri, unit.range.start) == (session.uri("tiny.toml"), place(MACHINE, '"load"'))
        (base,) = await session.definition("tinier.toml", place(extended, '"tiny.toml"'))
        assert base.uri == session.uri("tiny.toml")
        # What is no machine is left alone.
        assert await session.checked("pyproject.toml", "[project]\nname = \n") == []

    in_session(tmp_path, body)


def test_changes_in_quick_succession_are_read_once(tmp_path: Path) -> None:
    async def body(session: Session) -> None:
        await session.checked("a.mlir", SMALL)
        for end in range(len(SMALL) - 40, len(SMALL)):
            session.change("a.mlir", SMALL[:end])
        assert await session.checked("a.mlir", SMALL) == []
        assert len(session.published[session.uri("a.mlir")]) <= 4

    in_session(tmp_path, body)
