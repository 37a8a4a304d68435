# SPDX-License-Identifier: Apache-2.0
"""How a person wants to see the IR: xDSL's printer with what mlir-opt's flags leave out of the text, or add to it."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, DenseResourceAttr, ModuleOp
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.printer import Printer
from xdsl.syntax_printer import SyntaxPrinter
from xdsl.targets.mlir import MLIRTarget

ELIDED = "dense_resource<__elided__> : "
"""What stands for the elements of a constant that are left out, as MLIR writes it."""


@dataclass(frozen=True)
class TextStyle(MLIRTarget):
    """The text of a module, as these say."""

    elide_larger: int | None = None
    """Leave out the elements of constants that have more than so many."""
    skip_regions: bool = False
    """Print each region as `{...}`."""
    value_users: bool = False
    """Say in comments what uses each value: behind the operation, and of arguments in front of the block's first."""
    unique_names: bool = False
    """No two values of the text have one name, whatever function they are in."""

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        printer = self.print_op(module, output)
        printer.print_metadata(ctx.loaded_dialects)
        print("\n", file=output)

    def print_op(self, op: Operation, output: IO[str]) -> Printer:
        """Print an operation; returns what printed it."""
        coloured = self.syntax_highlight
        kind = SyntaxPrinter if coloured else _PlainPrinter
        if self.elide_larger is not None or self.skip_regions or self.value_users or self.unique_names:
            kind = _ColouredStyledPrinter if coloured else _StyledPrinter
        printer = kind(
            stream=output,
            print_generic_format=self.print_generic_format,
            print_properties_as_attributes=self.print_properties_as_attributes,
            print_debuginfo=self.print_debuginfo,
        )
        if isinstance(printer, _StyledPrinter):
            printer.style = self
        if isinstance(printer, _StyledPrinter) and self.value_users:
            # What comes later in the text has no name before it is printed.
            printer.stream = StringIO()
            printer.print_op(op)
            printer.stream, printer.names_are_known = output, True
        printer.print_op(op)
        return printer


class _PlainPrinter(Printer):
    def print_string(self, text: str, *, indent: int | None = None) -> None:
        # Most of what is printed is a word, and there are many.
        if "\n" in text or self.stream is None:
            super().print_string(text, indent=indent)
        else:
            self._current_column += len(text)
            self.stream.write(text)


class _StyledPrinter(_PlainPrinter):
    style: TextStyle = TextStyle()
    names_are_known = False

    def print_attribute(self, attribute: Attribute) -> None:
        limit = self.style.elide_larger
        match attribute:
            case DenseIntOrFPElementsAttr() if limit is not None and _count(attribute) > limit:
                self.print_string(ELIDED)
                super().print_attribute(attribute.type)
            case DenseResourceAttr() if limit is not None:
                self.print_string(ELIDED)
                super().print_attribute(attribute.type)
            case _:
                super().print_attribute(attribute)

    def print_region(
        self,
        region: Region,
        print_entry_block_args: bool = True,
        print_empty_block: bool = True,
        print_block_terminators: bool = True,
    ) -> None:
        if self.style.skip_regions:
            self.print_string("{...}")
        else:
            super().print_region(region, print_entry_block_args, print_empty_block, print_block_terminators)

    def enter_scope(self) -> None:
        if not self.style.unique_names:
            super().enter_scope()

    def exit_scope(self) -> None:
        if not self.style.unique_names:
            super().exit_scope()

    def print_op(self, op: Operation) -> None:
        if not self.names_are_known:
            super().print_op(op)
            return
        if op.parent is not None and op.prev_op is None:
            for arg in op.parent.args:
                names = ", ".join(self._users(arg))
                self.print_string(f"// {self._name(arg)} is {f'used by {names}' if names else 'unused'}")
                self._print_new_line()
        super().print_op(op)
        if op.results:
            users = [self._users(result) for result in op.results]
            few = sum(map(len, users)) == 1
            said = ", ".join(", ".join(each) or "unused" for each in users)
            self.print_string(f" // {'user' if few else 'users'}: {said}" if any(users) else " // unused")

    def _users(self, value: SSAValue) -> list[str]:
        users = (use.operation for use in value.uses)
        return list(dict.fromkeys(self._name(user.results[0]) if user.results else user.name for user in users))

    def _name(self, value: SSAValue) -> str:
        return f"%{self._ssa_values.get(value, '?')}"


class _ColouredStyledPrinter(SyntaxPrinter, _StyledPrinter):
    """The same in colours."""


def _count(attribute: DenseIntOrFPElementsAttr) -> int:
    count = 1
    for size in attribute.type.get_shape():
        count *= size
    return count


def op_text(ctx: Context, op: Operation, style: TextStyle) -> str:
    """The text of a module, or of one operation in it, with one newline at its end."""
    stream = StringIO()
    if isinstance(op, ModuleOp) and op.parent is None:
        style.emit(ctx, op, stream)
    else:
        style.print_op(op, stream)
    return stream.getvalue().rstrip("\n") + "\n"
