# SPDX-License-Identifier: Apache-2.0
"""
Amending the definition of an operation of xDSL in place: its class stays the one that everybody imports.

For what MLIR accepts and xDSL 0.74 refuses, or forgets in text. An amendment goes when xDSL has it; the file that makes
it says which one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import Attribute, Operation
from xdsl.irdl import AnyAttr, AttrConstraint, BaseAttr, IRDLOperation, OpDef, OptPropertyDef, OptResultDef, traits_def
from xdsl.irdl.declarative_assembly_format import FormatProgram
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import OpTrait, SameOperandsAndResultType

Op = type[IRDLOperation]


def _definition(op: Op) -> OpDef:
    return op.get_irdl_definition()


def values(op: Op, **constraints: AttrConstraint | type[Attribute]) -> None:
    """Set the constraints of operands and results by their names; how many there are of each stays as it is."""
    definition = _definition(op)
    for name, wanted in constraints.items():
        constraint = BaseAttr(wanted) if isinstance(wanted, type) else wanted
        if name in (operands := [known for known, _ in definition.operands]):
            index = operands.index(name)
            definition.operands[index] = (name, type(definition.operands[index][1])(constraint))
        else:
            index = [known for known, _ in definition.results].index(name)
            definition.results[index] = (name, type(definition.results[index][1])(constraint))


def optional_property(
    op: Op, name: str, constraint: AttrConstraint, default: Callable[[Any], Attribute | None] | None = None
) -> None:
    """Let a property be absent; it is then taken for what `default` says of the operation."""

    def read(self: IRDLOperation) -> Attribute | None:
        found = self.properties.get(name)
        return default(self) if found is None and default is not None else found

    def write(self: IRDLOperation, value: Attribute | None) -> None:
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value

    definition = _definition(op)
    definition.properties[name] = OptPropertyDef(constraint)
    definition.accessor_names.setdefault(name, (name, "property"))
    setattr(op, name, property(read, write))


def without_trait(op: Op, trait: type[OpTrait]) -> None:
    """Take a trait away, with what it verifies."""
    definition = _definition(op)
    definition.traits = traits_def(*(kept for kept in definition.traits if not isinstance(kept, trait)))
    setattr(op, "traits", definition.traits)


def optional_result(op: Op) -> None:
    """Let the only result be absent, which is then None; what the types of results are is for a check to say."""
    definition = _definition(op)
    ((name, _),) = definition.results
    definition.results[0] = (name, OptResultDef(AnyAttr()))
    without_trait(op, SameOperandsAndResultType)
    setattr(op, name, property(lambda self: self.results[0] if self.results else None))  # pyright: ignore[reportUnknownLambdaType]


def assembly(op: Op, text: str) -> None:
    """Set the custom form, in the language of declarative formats; the constraints are to be amended before."""
    definition = _definition(op)
    definition.assembly_format = text
    program = FormatProgram.from_str(text, definition)

    def parse(cls: Op, parser: Parser) -> Operation:
        return program.parse(parser, cls)

    def print_(self: IRDLOperation, printer: Printer) -> None:
        program.print(printer, self)

    setattr(op, "parse", classmethod(parse))
    setattr(op, "print", print_)


def check(op: Op, *checks: Callable[[Any], None]) -> None:
    """Verify by the definition and these functions, which raise VerifyException, in place of what xDSL has."""
    definition = _definition(op)

    def verify(self: IRDLOperation) -> None:
        definition.verify(self)
        for function in checks:
            function(self)

    setattr(op, "verify_", verify)
