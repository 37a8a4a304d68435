# SPDX-License-Identifier: Apache-2.0
"""A text of IR is read to its end: every fault at its own place, and the places of what could be read."""

from __future__ import annotations

import pytest

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText
from penstock.lowering.recovering_parser import MOST_FAULTS
from penstock.lowering.text_index import TextIndex, index_text


def indexed(text: str) -> TextIndex:
    return index_text(make_context(), SourceText("in.mlir", text))


def faults(text: str) -> list[tuple[int, str, str]]:
    """The line of each fault, what is underlined, and the message."""
    found = indexed(text)
    return [
        (text.count("\n", 0, each.extent.start) + 1, text[each.extent.start : each.extent.end], each.message)
        for each in found.faults
    ]


FAULTY = """func.func @f(%x: i32) -> i32 {
  %a = arith.addi %x, %x : i32
  %b = arith.addi %a, %u : i32
  %bad = arith.foo %a
  %c = arith.muli %a, %bad : i32
  %d = arith.muli %a,
  %e = arith.muli %a, %d : i64
  %g:2 = "test.x"(%e, %bad) : (i32, i32) -> (i32, i32)
  %a = arith.addi %g#1, %x : i32
  func.return %c : i32
}
func.func @g(%x: i32) -> i32 {
  %i = arith.constant 0 : index
  scf.for %k = %i too %i step %i {
    %z = arith.addi %x, %never : i32
  }
  func.return %x : i32
}
"""


def test_each_fault_is_at_its_place_and_hides_no_other() -> None:
    assert faults(FAULTY) == [
        (3, "%u", "use of the undefined value %u"),
        (4, "arith.foo", 'the operation "arith.foo" is not registered'),
        (7, "=", "Expected ':'"),
        (7, "%a", "operand is used with type i64, but has been previously used or defined with type i32"),
        (8, "test.x", 'the operation "test.x" is not registered'),
        (9, "%a", "SSA value %a is already defined"),
        (14, "too", "Expected 'to'"),
    ]


def test_a_fault_leads_to_what_it_contradicts() -> None:
    related = {each.message: each.related for each in indexed(FAULTY).faults}
    for message in ("SSA value %a is already defined", "operand is used with type i64, but has been previously used "
                    "or defined with type i32"):  # fmt: skip
        ((extent, said),) = related[message]
        assert (FAULTY[extent.start : extent.end], extent.start, said) == ("%a", FAULTY.index("%a ="), "defined here")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("// a comment\n", []),
        ("func.func @f() {\n  )\n  func.return\n}", [(2, ")", "expected an operation")]),
        ("}\n", [(1, "}", "Could not parse entire input")]),
        ("#m = affine_map<(d0) -> (e0)>\nfunc.func @f() { func.return }", [(1, "e0", "Identifier not in space e0")]),
        ('func.func @f() {\n  "a\n  func.return\n}', [(2, '"', "End of file reached before closing string")]),
        ("func.func @f() {\n  cf.br ^gone\n}", [(2, "^gone", "region ends with missing block declarations")]),
        ("func.func @f() {\n  func.return", [(2, "", "expected '}'")]),
        ("func.func @f() {\n  scf.if %c {\n  func.return\n}\n", [(5, "", "expected '}'"), (2, "%c", "undefined")]),
    ],
)
def test_what_is_not_closed_or_does_not_belong_is_one_fault(text: str, expected: list[tuple[int, str, str]]) -> None:
    found = faults(text)
    assert len(found) == len(expected), found
    for (line, words, message), (at, underlined, part) in zip(sorted(found), sorted(expected), strict=True):
        assert (line, words) == (at, underlined), found
        assert part in message


def test_what_is_around_a_region_that_is_not_closed_is_known() -> None:
    text = "func.func @f(%x: i32) {\n  func.call @f(%x) : (i32) -> ()\n"
    found = indexed(text)
    place = found.at(text.index("@f(%x) :"))
    assert place is not None
    assert [each.extent.start for each in found.places(place.named)] == [text.index("@f"), text.rindex("@f")]


def test_a_text_with_many_faults_is_not_read_to_its_end() -> None:
    assert len(faults("  arith.foo %x\n" * (2 * MOST_FAULTS))) == MOST_FAULTS


def names(text: str, word: str, nth: int = 0) -> list[tuple[int, bool]]:
    """The places of what the nth occurrence of a word names, and which of them defines it."""
    at = -1
    for _ in range(nth + 1):
        at = text.index(word, at + 1)
    found = indexed(text)
    assert found.faults == []
    place = found.at(at)
    return [] if place is None else [(each.extent.start, each.is_definition) for each in found.places(place.named)]


def test_a_value_is_what_is_visible_where_it_is_named() -> None:
    text = """func.func @f(%x: i32) { func.return }
func.func @g(%x: i32) -> i32 {
  %y:2 = "test.op"(%x) : (i32) -> (i32, i32)
  %z = arith.addi %y#1, %y#0 : i32
  func.return %z : i32
}
"""
    assert names(text, "%x") == [(text.index("%x"), True)]
    second = text.index("%x", 20)
    assert names(text, "%x", 2) == [(second, True), (text.index("%x)"), False)]
    assert names(text, "%y#0") == [(text.index("%y:2"), True), (text.index("%y#1"), False), (text.index("%y#0"), False)]


def test_a_value_may_be_named_before_it_is_defined() -> None:
    text = """func.func @f(%c: i1) {
  cf.br ^second
^first:
  "test.op"(%v) : (i32) -> ()
  func.return
^second:
  %v = arith.constant 1 : i32
  cf.br ^first
}
"""
    assert names(text, "%v)") == [(text.index("%v)"), False), (text.index("%v ="), True)]
    assert names(text, "^first:") == [(text.index("^first:"), True), (text.rindex("^first"), False)]
    assert names(text, "^second\n") == [(text.index("^second\n"), False), (text.index("^second:"), True)]


def test_a_symbol_is_found_in_the_nearest_table() -> None:
    text = """builtin.module @inner {
  func.func private @f(i32)
  func.func @g(%x: i32) {
    func.call @f(%x) : (i32) -> ()
    func.return
  }
}
func.func private @f(i32)
func.func @h(%x: i32) {
  func.call @f(%x) : (i32) -> ()
  "test.op"() {to = @inner::@g} : () -> ()
  func.return
}
"""
    inner, outer = (text.index("private @f", start) + len("private ") for start in (0, text.index("}\nfunc")))
    assert names(text, "@f(%x)") == [(inner, True), (text.index("@f(%x)"), False)]
    assert names(text, "@f(%x)", 1) == [(outer, True), (text.rindex("@f(%x)"), False)]
    assert names(text, "@g}") == [(text.index("@g("), True), (text.index("@g}"), False)]


def test_an_alias_is_named_where_it_stands_alone() -> None:
    text = """#map = affine_map<(d0) -> (d0)>
!t = tensor<4xf32>
func.func @f(%x: !t) -> !t {
  "test.op"() {a = #map, b = "#map", c = #map.x<1>} : () -> ()
  func.return %x : !t
}
""".replace(", c = #map.x<1>", "")
    assert names(text, "#map") == [(0, True), (text.index("#map,"), False)]
    assert len(names(text, "!t")) == 4
