# SPDX-License-Identifier: Apache-2.0
"""The weights of a module on its way through a command: found, checked, and written beside the output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp, ShapedType, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from penstock.dialects.context import WEIGHTS_ATTRIBUTE, PenstockContext, bind_weights
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_bits import same_bits
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.files import check_writable, follow, is_special
from penstock.dialects.functions import WEIGHT, attribute_text
from penstock.dialects.graph.base import WeightAttr
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import ParsedText


def weight_uses(module: ModuleOp) -> Iterator[tuple[str, Attribute, Operation]]:
    """Every use of a weight, in the order of the text: its name, the type it is used with, the operation."""
    for op in module.walk():
        for attribute in (*op.properties.values(), *op.attributes.values()):
            if isinstance(attribute, WeightAttr):
                yield attribute.key.data, op.results[0].type, op
        if isinstance(op, FuncOp):
            for index, type in enumerate(op.function_type.inputs):
                if (name := attribute_text(op, index, WEIGHT)) is not None:
                    yield name, type, op


def open_weights(ctx: PenstockContext, parsed: ParsedText, source: str) -> frozenset[str]:
    """
    Bind the weights file that the module parsed from the file `source` names, check what the module says of it, and
    return the names of its entries.

    A module that names no file may refer to weights all the same: text is worth reading without them.
    Raises UserError for a missing file, a missing entry and an entry of another shape or type.
    """
    bind_weights(ctx, parsed.module, _without_links(source).parent)
    if WEIGHTS_ATTRIBUTE in parsed.module.attributes:
        for name, type, op in weight_uses(parsed.module):
            _check_entry(ctx.weights, name, type, parsed.place_of(op))
    return frozenset(ctx.weights.names())


def _without_links(name: str) -> Path:
    """The file that `name` leads to: the weights of a text are beside the text, and not beside a link to it."""
    path = Path(name)
    return path.resolve() if path.is_symlink() else path


def _check_entry(store: WeightStore, name: str, type: Attribute, place: str) -> None:
    try:
        shape, dtype = store.shape_dtype(name)
    except UserError as error:
        # The store knows the file; the place of the use is what the reader can mend.
        notes = [*([f"the weights file is {error.loc}"] if error.loc else []), *error.notes]
        raise UserError(error.message, loc=place, notes=notes) from None
    if not isinstance(type, ShapedType):
        return
    expected = numpy_dtype(type.get_element_type())  # pyright: ignore
    # Below graph level integers are signless, so an unsigned entry stands for bits of the same width.
    if shape != tuple(type.get_shape()) or not same_bits(expected, dtype):
        raise UserError(
            f'the weight "{name}" is used as {type}, but the weights file has shape {_spell(shape)} and type {dtype}',
            loc=place,
            notes=["the text and its .safetensors file are written together; keep them together"],
        )


def carry_weights(
    ctx: PenstockContext,
    module: ModuleOp,
    source: str,
    output: str | None,
    opened: frozenset[str],
    weights: str | None = None,
) -> tuple[str | None, list[str]]:
    """
    Make the weights that the module refers to reachable from the file `output`: written to the file `weights`, or
    where there is none and passes added some to those `opened`, beside the output as `<stem>.safetensors`; else by
    the path to the file they are in.

    Returns the file that was written, if any, and warnings: what could not be carried because the output is no file.
    Raises UserError, and writes nothing, where one of the two files cannot be written.
    """
    used = tuple(dict.fromkeys(name for name, _, _ in weight_uses(module)))
    added = [name for name in used if name in ctx.weights and name not in opened]
    named = module.attributes.get(WEIGHTS_ATTRIBUTE)
    folder: Path | None = None
    if output is not None and output != "-":
        check_writable(output)
        if not is_special(output):
            folder = _without_links(output).parent
            if added and weights is None:
                weights = str(_without_links(output).with_suffix(".safetensors"))
    if weights is not None and used:
        check_writable(weights)
        if output is not None and follow(weights) == follow(output):
            notes = ["--weights FILE writes the weights to another file"]
            raise UserError("the weights and the text would be one file", loc=weights, notes=notes)
        save_weights(ctx.weights, module, Path(weights), folder or Path())
        return weights, []
    if added:
        where = "stdout" if output in (None, "-") else output
        return None, [f"{len(added)} new weights are lost on {where}; give -o FILE or --weights FILE to keep them"]
    if isinstance(named, StringAttr) and folder is not None:
        _name_weights(module, _without_links(source).parent / named.data, folder)
    return None, []


def save_weights(store: WeightStore, module: ModuleOp, path: Path, folder: Path | None = None) -> None:
    """
    Write the entries that `module` uses to `path`, and name that file in the module, whose text will be in `folder`,
    by default that of the weights.
    """
    used = tuple(dict.fromkeys(name for name, _, _ in weight_uses(module)))
    store.save(path, used)
    _name_weights(module, path, path.parent if folder is None else folder)


def _name_weights(module: ModuleOp, path: Path, folder: Path) -> None:
    """Name the file in a module whose text will be in `folder`; the way up from a folder is that of its target."""
    if path.parent == folder:
        named = path.name
    else:
        named = os.path.relpath(path.parent.resolve() / path.name, folder.resolve())
    module.attributes[WEIGHTS_ATTRIBUTE] = StringAttr(Path(named).as_posix())


def _spell(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
