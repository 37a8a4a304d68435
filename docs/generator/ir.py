# SPDX-License-Identifier: Apache-2.0
"""Dialects: what the classes of their ops, types and attributes declare."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum

from docs.generator.examples import file_examples
from docs.generator.source import PACKAGE, Module, fields, module_called
from docs.generator.verifier import OP_NAME, refusals
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import IRDLOperation
from xdsl.traits import OpTrait

from penstock.dialects.upstream import AMENDED
from penstock.tools.markdown import anchor, block, code, in_one_line, reflowed, summary, table
from penstock.tools.op_documentation import SEGMENTS, op_strings, op_table, type_text


def dialect_parts(dialect: Dialect, module: Module) -> Iterator[list[str]]:
    """The parts of a page on a dialect, which `module` defines: its types and attributes, and its ops by name."""
    yield [f"# The dialect {code(dialect.name)}"]
    yield reflowed(module.docstring)
    yield from _definitions(dialect.operations, dialect.attributes)


def upstream_parts() -> Iterator[list[str]]:
    """The parts of a page on what MLIR's dialects have here and not in xDSL."""
    module = module_called(f"{PACKAGE}.dialects.upstream")
    assert module is not None
    yield ["# Ops of MLIR's dialects"]
    yield reflowed(module.docstring)
    dialects = [factory() for _, factory in sorted(AMENDED.items())]
    ops = [op for each in dialects for op in each.operations if _source(op) is not None]
    yield from _definitions(ops, [each for one in dialects for each in one.attributes if _source(each) is not None])


def _definitions(operations: Iterable[type[Operation]], attributes: Iterable[type[Attribute]]) -> Iterator[list[str]]:
    ops = sorted((op for op in operations if issubclass(op, IRDLOperation)), key=lambda op: op.name)
    rows = [(f"[{code(op.name)}](#{anchor(op.name)})", summary(_docstring(op))) for op in ops]
    yield table(("op", "what it is"), rows)
    for attribute in sorted(attributes, key=lambda each: each.name):
        yield from _attribute_section(attribute)
    bases = sorted({base for op in ops for base in _bases(op)}, key=lambda base: base.__name__)
    shared = {base: _shared_refusals([op for op in ops if issubclass(op, base)]) for base in bases}
    for op in ops:
        yield from _op_section(op, {message for base in _bases(op) for message in shared[base]})
    if bases:
        yield ["## Classes that ops share"]
    for base in bases:
        yield [f"### {code(base.__name__)}"]
        yield _place(base)
        yield reflowed(_docstring(base))
        above = {message for each in bases if each is not base and issubclass(base, each) for message in shared[each]}
        yield _refused([message for message in shared[base] if message not in above], OP_NAME)
    yield ["## Traits"]
    yield ["What ops say of themselves to all passes:"]
    traits = {type(trait) for op in ops for trait in op.get_irdl_definition().traits.traits}
    yield table(("trait", "what it means"), [(code(each.__name__), _trait_meaning(each)) for each in _by_name(traits)])


def _by_name(traits: Iterable[type[OpTrait]]) -> list[type[OpTrait]]:
    return sorted(traits, key=lambda trait: trait.__name__.lstrip("_"))


def _shared_refusals(ops: Sequence[type[IRDLOperation]]) -> list[str]:
    """What the verifiers of all of several ops refuse; nothing for one."""
    if len(ops) < 2:
        return []
    first, *others = (refusals(op) for op in ops)
    return [message for message in first if all(message in each for each in others)]


def _refused(messages: Sequence[str], op_name: str) -> list[str]:
    """The messages of a verifier, an item each."""
    items = [f"- {code(message.replace(OP_NAME, op_name))}" for message in messages]
    return ["The verifier refuses, and says:", "", *items] if items else []


def _attribute_section(attribute: type[Attribute]) -> Iterator[list[str]]:
    kind, sigil = ("type", "!") if issubclass(attribute, TypeAttribute) else ("attribute", "#")
    # An op may have the same name, and its heading is what links lead to.
    yield [f"## The {kind} {code(f'{sigil}{attribute.name}')}"]
    yield _place(attribute)
    yield reflowed(_docstring(attribute))
    source = _source(attribute)
    if source is not None and issubclass(attribute, ParametrizedAttribute):
        meanings = {field.name: field.docstring for field in fields(*source)}
        parameters = attribute.get_irdl_definition().parameters
        rows = [(code(name), type_text(each.constr), in_one_line(meanings.get(name, ""))) for name, each in parameters]
        yield table(("parameter", "type", "meaning"), rows)


def _op_section(op: type[IRDLOperation], shared: Collection[str]) -> Iterator[list[str]]:
    """The parts of a page on an op; what classes that it is derived from refuse, `shared`, stands there."""
    definition = op.get_irdl_definition()
    yield [f"## {code(op.name)}"]
    yield _place(op)
    yield reflowed(_docstring(op))
    if definition.assembly_format is not None:
        yield ["Syntax:", "", *block(_syntax(op.name, definition.assembly_format), "text")]
    for directive in definition.custom_directives.values():
        if directive.__module__.startswith(f"{PACKAGE}."):
            yield [f"{code(f'custom<{directive.__name__}>')}: {in_one_line(directive.__doc__ or '')}"]
    yield op_table(op)
    if found := file_examples(op):
        yield ["Examples:" if len(found) > 1 else "Example:", "", *block("\n".join(found), "mlir")]
    yield _refused([message for message in refusals(op) if message not in shared], op.name)
    if traits := sorted({_trait(each) for each in definition.traits.traits}):
        yield [f"[Traits](#traits): {', '.join(map(code, traits))}."]


_BROAD = 100
"""Letters of a line of syntax."""


def _syntax(name: str, assembly_format: str) -> str:
    """The assembly format of an op, in several lines if it is long, and with no group in two of them."""
    found = [name]
    for word in _words(assembly_format):
        if len(found[-1]) + len(word) < _BROAD:
            found[-1] += f" {word}"
        else:
            found.append(f"    {word}")
    return "\n".join(found)


def _words(assembly_format: str) -> list[str]:
    """What stands between blanks that are in no parentheses."""
    words, depth = [""], 0
    for number, part in enumerate(assembly_format.split("`")):
        # Every second part is in backquotes.
        quote = "`" if number % 2 else ""
        for letter in (quote, *part, quote):
            depth += 0 if quote else (letter == "(") - (letter == ")")
            if letter == " " and depth == 0 and not quote:
                words.append("")
            else:
                words[-1] += letter
    return words


def _bases(op: type) -> list[type[Operation]]:
    """The classes of ours that a class of ops is derived from, the nearest first."""
    found = [base for base in op.__mro__[1:] if _source(base) is not None and issubclass(base, Operation)]
    return [base for base in found if "name" not in vars(base)]


def _place(of: type) -> list[str]:
    module = module_called(of.__module__)
    file = "" if module is None else f" of {code(module.path.as_posix())}"
    near = [base for base in of.__bases__ if base in _bases(of)]
    links = ", ".join(f"[{code(base.__name__)}](#{anchor(base.__name__)})" for base in near)
    return [f"*{code(of.__name__)}{file}{f', derived from {links}' if links else ''}*"]


def undescribed(op: type[IRDLOperation]) -> list[str]:
    """The operands, properties and regions of an op with no string under them, and with no word in a docstring."""
    definition, meanings = op.get_irdl_definition(), op_strings(op)
    accessors = {name: accessor for accessor, (name, _) in definition.accessor_names.items()}
    names = [name for name, _ in (*definition.operands, *definition.regions)]
    names += [name for name in (*definition.properties, *definition.attributes) if name not in SEGMENTS]
    words = set(re.findall(r"\w+", " ".join(_docstring(each) for each in (op, *_bases(op)))))
    return [name for name in names if name not in words and not meanings.get(accessors.get(name, name))]


def _source(of: type) -> tuple[Module, ast.ClassDef] | None:
    """The class as its module has it; None for a class of others."""
    module = module_called(of.__module__) if of.__module__.startswith(f"{PACKAGE}.") else None
    found = None if module is None else module.defined.get(of.__name__)
    return None if found is None or not isinstance(found.node, ast.ClassDef) else (found.module, found.node)


def _docstring(of: type) -> str:
    return vars(of).get("__doc__") or ""


_TRAIT_MEANINGS = {
    "HasParent": "It stands directly in an op of this kind.",
    "IsTerminator": "It ends its block.",
    "IsolatedFromAbove": "Its regions use no values from outside.",
    "MemoryAllocEffect": "It makes memory: two of it are never merged, and none is moved out of a loop.",
    "MemoryReadEffect": "It reads memory, or what is like it: it stays behind earlier writes and before later ones.",
    "MemoryWriteEffect": "It writes memory, or what is like it: it is never removed, nor moved past other accesses.",
    "NoMemoryEffect": "It touches no memory: it is removed where nothing uses it.",
    "NoTerminator": "Its block needs no op at its end.",
    "Pure": "It has no effects: it is removed where nothing uses it, merged with its like, and may be moved.",
    "ReturnLike": "Its operands are what the op around it gives.",
    "SingleBlockImplicitTerminator": "Its region is one block, whose end may be left out of the text.",
    "SymbolOpInterface": "It has a name in the symbol table around it, `@name`.",
    "RecursiveMemoryEffect": "It has the effects of the ops in it.",
    "RecursivelySpeculatable": "It may be executed where it was not, if the ops in it may be.",
    "SymbolTable": "The names of what is in it are its own, each there once.",
}
"""What traits of xDSL mean."""


def _trait_meaning(trait: type[OpTrait]) -> str:
    if trait.__module__.startswith(f"{PACKAGE}."):
        return summary(trait.__doc__ or "")
    return in_one_line(_TRAIT_MEANINGS[trait.__name__])


def _trait(trait: OpTrait) -> str:
    """A trait, with what it is told, as its class prints it."""
    told = [str(value.value if isinstance(value, Enum) else value) for value in vars(trait).values()]
    told = [word for word in told if word and "object at" not in word and "<" not in word]
    return type(trait).__name__ + (f"({', '.join(told)})" if told else "")
