# SPDX-License-Identifier: Apache-2.0
"""Dumps of the IR around passes, headed as MLIR heads its own: on stderr, or in files that a run goes on from."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.context import WEIGHTS_ATTRIBUTE, PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import write_whole
from penstock.lowering.from_text import ParsedText, SourceText, parse_text
from penstock.lowering.printing import TextStyle, op_text
from penstock.runtime.instrumentation import Instrumentation
from penstock.runtime.nested_pipelines import NestedPipeline
from penstock.runtime.pass_manager import load_pass
from penstock.tools.opt_flags import ALL
from penstock.tools.reproduce import reproducer_section


@dataclass
class IrDumper(Instrumentation):
    """Prints the IR before or after the chosen passes; of nested ones the operation that they run on."""

    ctx: PenstockContext
    style: TextStyle
    passes: Sequence[ModulePass]
    """The pipeline, of which a dump that is a file names the rest."""
    before_passes: frozenset[str] = frozenset()
    after_passes: frozenset[str] = frozenset()
    after_change: bool = False
    after_failure: bool = False
    module_scope: bool = False
    but_last: bool = False
    """Not after the last pass of the pipeline."""
    tree: DumpTree | None = None
    _previous: str = field(default="", init=False)
    _index: int = field(default=-1, init=False)
    """Of the pass in the pipeline."""
    _inner: int = field(default=-1, init=False)
    """Of the pass in the nested pipeline that runs on `_op`."""
    _op: Operation | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)

    def before(self, module_pass: ModulePass, module: Operation) -> None:
        self._index, self._op = self._index + 1, None
        if not isinstance(module_pass, NestedPipeline):
            self._before(module_pass, module)

    def after(self, module_pass: ModulePass, module: Operation) -> None:
        if not isinstance(module_pass, NestedPipeline):
            self._after(module_pass, module)

    def before_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self._inner, self._op = (0 if op is not self._op else self._inner + 1), op
        self._before(module_pass, op)

    def after_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self._after(module_pass, op)

    def failed(self, module_pass: ModulePass, op: Operation) -> None:
        if self.after_failure and not self._failed:
            self._dump("After", module_pass, op, self._text(op), " Failed")
        self._failed = True

    def _before(self, module_pass: ModulePass, op: Operation) -> None:
        if self.before_passes & {ALL, module_pass.name}:
            self._dump("Before", module_pass, op, self._text(op))
        if self.after_change:
            self._previous = self._text(op)

    def _after(self, module_pass: ModulePass, op: Operation) -> None:
        if self.but_last and self._index == len(self.passes) - 1:
            return
        asked = bool(self.after_passes & {ALL, module_pass.name})
        if not asked and not self.after_change:
            return
        text = self._text(op)
        if asked or text != self._previous:
            self._dump("After", module_pass, op, text)

    def _text(self, op: Operation) -> str:
        return op_text(self.ctx, self._scope(op), self.style)

    def _scope(self, op: Operation) -> Operation:
        return op.get_toplevel_object() if self.module_scope else op  # pyright: ignore[reportReturnType]

    def _dump(self, when: str, module_pass: ModulePass, op: Operation, text: str, failed: str = "") -> None:
        name = module_pass.name
        where = "" if op.parent is None else f" ('{op.name}' operation{_symbol(op)})"
        if self.tree is None:
            print(f"// -----// IR Dump {when} {name}{failed}{where} //----- //\n{text}", end="", file=sys.stderr)
            return
        number = f"{self._index}" if op.parent is None else f"{self._index}_{self._inner}"
        what = {"Before": "_before", "After": "_failed" if failed else ""}[when]
        rest = self.passes[self._index + (when == "After") :]
        self.tree.write(self.ctx, op, self.style, f"{number}_{_file_name(name)}{what}.mlir", rest)


@dataclass
class DumpTree:
    """
    A folder with one file a dump, in a folder for each operation as MLIR has them.

    A dump of a whole module names the passes that were still to come, as a reproducer does, and its weights: `--resume`
    goes on from there. Weights that a pass made are written beside the first dump that uses them.
    """

    folder: Path
    weights_file: Path | None
    """Where the weights of the input are."""
    in_file: frozenset[str]
    """Their names."""

    def write(
        self, ctx: PenstockContext, op: Operation, style: TextStyle, name: str, rest: Sequence[ModulePass]
    ) -> None:
        """Write a dump; raises UserError where that cannot be done."""
        folder = self.folder
        for around in _path(op):
            folder /= around
        folder.mkdir(parents=True, exist_ok=True)
        if not isinstance(op, ModuleOp) or op.parent is not None:
            write_whole(folder / name, op_text(ctx, op, style))
            return
        named = op.attributes.get(WEIGHTS_ATTRIBUTE)
        try:
            self._name_weights(ctx, op, folder / name)
            text = op_text(ctx, op, style)
        finally:
            if named is not None:
                op.attributes[WEIGHTS_ATTRIBUTE] = named
            else:
                op.attributes.pop(WEIGHTS_ATTRIBUTE, None)
        write_whole(folder / name, text + reproducer_section(rest))

    def _name_weights(self, ctx: PenstockContext, module: ModuleOp, path: Path) -> None:
        if not ctx.has_weights:
            return
        from penstock.runtime.weights import save_weights, weight_uses

        used = {name for name, _, _ in weight_uses(module)}
        if not used <= self.in_file or self.weights_file is None:
            self.weights_file, self.in_file = path.with_suffix(".safetensors"), frozenset(used)
            if used:
                save_weights(ctx.weights, module, self.weights_file, path.parent)
        if used:
            module.attributes[WEIGHTS_ATTRIBUTE] = StringAttr(str(self.weights_file.resolve()))


def _path(op: Operation) -> list[str]:
    names: list[str] = []
    current: Operation | None = op
    while current is not None:
        symbol = _symbol(current)[3:] or "no-symbol-name"
        names.append(f"{current.name.replace('.', '_')}_{_file_name(symbol)}")
        current = current.parent_op()
    return names[::-1]


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _symbol(op: Operation) -> str:
    found = op.get_attr_or_prop("sym_name")
    return f": @{found.data}" if isinstance(found, StringAttr) else ""


def require_roundtrip(ctx: PenstockContext, parsed: ParsedText) -> None:
    """Raise UserError where the text of a module, in either form, is not read back as the same module."""
    for generic in (False, True):
        form = "generic form" if generic else "custom form"
        text = op_text(ctx, parsed.module, TextStyle(print_generic_format=generic))
        try:
            again = parse_text(ctx, SourceText(f"<{form}>", text)).module
        except UserError as error:
            raise UserError(f"the {form} of the input is not read back: {error.message}", loc=error.loc) from None
        if not again.is_structurally_equivalent(parsed.module):
            raise UserError(f"the {form} of the input is read back as another module")


def check_printed(args: argparse.Namespace, passes: Sequence[ModulePass] | None) -> None:
    """
    Warn of passes whose IR was asked for and that are not among `passes`, if these are known.

    Raises UserError for passes that do not exist.
    """
    present = None if passes is None else {each.name for each in _all_passes(passes)}
    for name in sorted((args.print_ir_before | args.print_ir_after) - {ALL}):
        load_pass(name)
        if present is not None and name not in present:
            print(f'warning: the pass "{name}" is not in the pipeline, so its IR is not printed', file=sys.stderr)


def _all_passes(passes: Sequence[ModulePass]) -> Sequence[ModulePass]:
    """The passes of a pipeline and of those that are nested in it."""
    return [
        inner for each in passes for inner in (_all_passes(each.passes) if isinstance(each, NestedPipeline) else [each])
    ]
