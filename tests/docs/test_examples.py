# SPDX-License-Identifier: Apache-2.0
"""
Every op of our dialects has an example, which is parsed, verified, and printed and read again in both forms; so has
every type and attribute. A name that an example of a docstring does not define is an argument of the function around.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
from docs.generator.examples import docstring_examples, example_file, examples
from docs.generator.verifier import refusals
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, TypeAttribute
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser
from xdsl.targets.mlir import MLIRTarget

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream import AMENDED
from penstock.dialects.upstream.linalg_named import TabledOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.runtime.pass_manager import verify
from penstock.tools.universe import DIALECTS

LOADED: dict[str, Dialect] = {name: resolve_name(place) for name, place in DIALECTS.items()}
OURS = {
    name: [op for op in dialect.operations if op.__module__.startswith("penstock.") and not issubclass(op, TabledOp)]
    for name, dialect in (*LOADED.items(), *((name, make()) for name, make in AMENDED.items()))
}
"""
The ops of each dialect that are defined here, those of MLIR's dialects too, but for the named ones of linalg: a table
has them, and tests/support/mlir_texts.py programs of each.
"""
FILES = sorted({path for ops in OURS.values() for op in ops if (path := example_file(op)) is not None})
DOCSTRINGS = [
    (op, text)
    for each in LOADED.values()
    for op in each.operations
    if example_file(op) is None
    for text in docstring_examples(op)
]


def around(text: str) -> ModuleOp:
    """A module with the ops of a text in a function, whose arguments are what they use and do not define."""
    parser = Parser(make_context(), text)
    ops = list[Operation]()
    while (op := parser.parse_optional_operation()) is not None:
        ops.append(op)
    assert parser.pos >= len(text.rstrip()), f"this is no operation: {text[parser.pos :]}"
    missing = {
        f"{name}_{number}": value
        for name, values in parser.forward_ssa_references.items()
        for number, value in values.items()
    }
    block = Block(arg_types=[value.type for value in missing.values()])
    for value, argument in zip(missing.values(), block.args, strict=True):
        value.replace_all_uses_with(argument)
    block.add_ops([*ops, ReturnOp()])
    return ModuleOp([FuncOp("example", ([each.type for each in block.args], []), Region(block))])


def in_both_forms(module: ModuleOp) -> Iterator[str]:
    """The text of a module after it has been printed and read in either form."""
    ctx = make_context()
    for style in (MLIRTarget(), MLIRTarget(print_generic_format=True)):
        again = parse_text(ctx, SourceText("example", module_text(ctx, module, style))).module
        verify(again)
        yield module_text(ctx, again)


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_op_of_a_dialect_has_an_example(name: str) -> None:
    assert [op.name for op in OURS[name] if not examples(op)] == []
    both = [op.name for op in OURS[name] if example_file(op) is not None and docstring_examples(op)]
    assert both == [], "an example has one place: the docstring, or the file beside the dialect"


@pytest.mark.parametrize(("op", "text"), DOCSTRINGS, ids=[op.name for op, _ in DOCSTRINGS])
def test_the_example_of_a_docstring_is_valid_and_round_trips(op: type[Operation], text: str) -> None:
    module = around(text)
    verify(module)
    assert any(isinstance(each, op) for each in module.walk())
    printed = module_text(make_context(), module)
    assert list(in_both_forms(module)) == [printed, printed]


@pytest.mark.parametrize("path", FILES, ids=[path.parent.name for path in FILES])
def test_a_file_of_examples_is_printed_as_it_is(path: Path) -> None:
    text = re.sub(r"^//.*\n+|\n(?=\n)", "", path.read_text(), flags=re.MULTILINE)
    module = parse_text(make_context(), SourceText(str(path), text)).module
    verify(module)
    expected = f"builtin.module {{\n{re.sub('^', '  ', text, flags=re.MULTILINE).rstrip()}\n}}\n"
    # xDSL ends a line of `linalg.reduce` in a blank.
    assert [re.sub(" +$", "", each, flags=re.MULTILINE) for each in in_both_forms(module)] == [expected, expected]


def test_a_faulty_example_is_noticed() -> None:
    with pytest.raises(UserError, match="a ring has at least one slot"):
        verify(around('%r = mem.ring 0 : !mem.ring<memref<4xf32, "spad">>'))
    text = module_text(make_context(), around("mem.prefetch %x step 16 : memref<4xf32>"))
    assert re.search(r"\(%\w+: memref<4xf32>\)", text)


FAULTY = (
    '%r = mem.ring 0 : !mem.ring<memref<4xf32, "spad">>',
    'mem.copy %x[0] to %y : memref<4x4xf32> to memref<4x4xf32, "spad">',
    "%y = graph.matmul %a, %b : (tensor<2x3xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>",
    "%y = graph.relu %a : tensor<4xui8>",
    "%y = graph.kernel @absent(%x) : (tensor<4xf32>) -> tensor<4xf32>",
    '%t = accel.exec @add extents [0] maps [affine_map<(i) -> (i)>] (%a) : memref<4xf32, "spad">',
    "%a, %b, %c = schedule.split %loop",
    "machine.unit @load",
)
"""Ops that their verifiers refuse."""


@pytest.mark.parametrize("text", FAULTY, ids=lambda text: re.findall(r"\w+\.\w+", text)[0])
def test_what_a_verifier_says_is_in_the_reference(text: str) -> None:
    module = around(text)
    (op,) = (each for each in module.walk() if each.dialect_name() in LOADED)
    assert isinstance(op, IRDLOperation)
    with pytest.raises(UserError) as refused:
        verify(module)
    patterns = [re.sub(r"\\{.*?\\}", ".*", re.escape(message)) for message in refusals(type(op))]
    # Messages of ours say the op before them.
    assert [each for each in patterns if re.search(each + "$", refused.value.message)], refused.value.message


ATTRIBUTES = [each for dialect in LOADED.values() for each in dialect.attributes]


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=[each.name for each in ATTRIBUTES])
def test_the_docstring_of_a_type_or_attribute_shows_its_text(attribute: type[Attribute]) -> None:
    sigil = "!" if issubclass(attribute, TypeAttribute) else "#"
    shown = re.findall(rf"`({sigil}{attribute.name}(?:<[^`]*>)?)`", attribute.__doc__ or "")
    assert shown
    for text in shown:
        assert str(Parser(make_context(), text).parse_attribute()) == text
