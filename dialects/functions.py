# SPDX-License-Identifier: Apache-2.0
"""Functions: what attributes say of their arguments and results, their body as one block, and free names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, DenseArrayBase, IntegerType, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineExpr, AffineMap, AffineSymExpr
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of

NAME = "graph.name"
"""The attribute that names an input, which is an argument of @main, or a result of @main."""
WEIGHT = "graph.weight"
"""The attribute of an argument of @main below graph level that names the entry of the weight store that it is."""
OUTPUT = "graph.output"
"""The attribute of an argument of @main at loop level and below that names the output written through it."""
COUNT = "graph.count"
"""The attribute of a result, or an output, of @main that names the output that counts its lines in a run."""

SIZES = "graph.sizes"
"""The attribute of a function that names the sizes that only a run knows, each up to a bound."""
BOUNDS = "graph.bounds"
"""The attribute that has the bounds of these, in their order."""
SHAPE = "graph.shape"
"""The attribute of an argument, or a result, of @main that says its shape as a map of these sizes."""


def attribute_text(function: FuncOp, index: int, key: str, *, results: bool = False) -> str | None:
    """The text of an attribute of an argument or a result; None if it has none."""
    attributes = function.res_attrs if results else function.arg_attrs
    found = attributes.data[index].data.get(key) if attributes else None
    return found.data if isinstance(found, StringAttr) else None


def bounds_of(function: FuncOp) -> dict[str, int]:
    """The sizes of a function that only a run knows, each with its bound."""
    names, bounds = function.attributes.get(SIZES), function.attributes.get(BOUNDS)
    if not isa(names, ArrayAttr[StringAttr]) or not isa(bounds, DenseArrayBase[IntegerType]):
        return {}
    return {name.data: most for name, most in zip(names, bounds.get_values(), strict=True)}


def set_bounds_of(function: FuncOp, bounds: Mapping[str, int]) -> None:
    """Let these be the sizes of a function that only a run knows."""
    function.attributes[SIZES] = ArrayAttr([StringAttr(name) for name in bounds])
    function.attributes[BOUNDS] = DenseArrayBase.from_list(i64, list(bounds.values()))


def shape_map(function: FuncOp, index: int, *, results: bool = False) -> AffineMap | None:
    """The shape of an argument, or result, in terms of these sizes; None for one whose type says it."""
    attributes = function.res_attrs if results else function.arg_attrs
    found = attributes.data[index].data.get(SHAPE) if attributes is not None else None
    return found.data if isinstance(found, AffineMapAttr) else None


def shape_words(function: FuncOp, index: int, sizes: Sequence[str]) -> tuple[str, ...]:
    """That shape with the names of the sizes; empty for an argument whose type says it."""
    found = shape_map(function, index)
    return () if found is None else tuple(_words(size, sizes) for size in found.results)


def _words(size: AffineExpr, names: Sequence[str]) -> str:
    match size:
        case AffineSymExpr():
            return names[size.position]
        case AffineBinaryOpExpr():
            sign = "+" if size.kind is AffineBinaryOpKind.Add else "*"
            return f"{_words(size.lhs, names)} {sign} {_words(size.rhs, names)}"
        case _:
            return str(size)


def input_name(function: FuncOp, index: int) -> str:
    """What an input is called: by `graph.name`, else as the text names the argument, else by its number."""
    if (name := attribute_text(function, index, NAME)) is not None:
        return name
    block = function.body.first_block
    names = [] if block is None else [attribute_text(function, a.index, NAME) or a.name_hint for a in block.args]
    name = names[index] if names else None
    return name if name is not None and names.count(name) == 1 else f"input_{index}"


def entry_block(function: FuncOp, what: str) -> Block:
    """The first block of `function`; raises UserError (located) for a declaration, which cannot be `what` without."""
    if (block := function.body.first_block) is not None:
        return block
    name, place = function.sym_name.data, location_of(function)
    raise UserError(f"@{name} is declared only and cannot be {what}", loc=place)


def body_block(function: FuncOp, what: str) -> Block:
    """
    The only block of `function`, which cannot be `what` ("interpreted", "lowered to tensors") without one.

    Raises UserError (unsupported, located) for a declaration and for a function of several blocks.
    """
    block = entry_block(function, what)
    if block.next_block is None:
        return block
    raise UserError(
        f"@{function.sym_name.data} has several blocks and cannot be {what}",
        loc=location_of(function if block.last_op is None else block.last_op),
        notes=["the pass lift-cf-to-scf makes ops of scf of its control flow"],
        status=UNSUPPORTED,
    )


def unique_name(name: str, taken: set[str]) -> str:
    """`name`, or the first of `name_1`, `name_2`, ... that is not taken; from now on it is."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found
