"""Functions: what attributes say of their arguments and results, their body as one block, and free names."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of

NAME = "graph.name"
"""The attribute that names an input, which is an argument of @main, or a result of @main."""
WEIGHT = "graph.weight"
"""The attribute of an argument of @main below graph level that names the entry of the weight store that it is."""
OUTPUT = "graph.output"
"""The attribute of an argument of @main at loop level and below that names the output written through it."""


def attribute_text(function: FuncOp, index: int, key: str, *, results: bool = False) -> str | None:
    """The text of an attribute of an argument or a result; None if it has none."""
    attributes = function.res_attrs if results else function.arg_attrs
    found = attributes.data[index].data.get(key) if attributes else None
    return found.data if isinstance(found, StringAttr) else None


def input_name(function: FuncOp, index: int) -> str:
    """What an input is called: by `graph.name`, else as the text names the argument, else by its number."""
    if (name := attribute_text(function, index, NAME)) is not None:
        return name
    block = function.body.first_block
    names = [] if block is None else [attribute_text(function, a.index, NAME) or a.name_hint for a in block.args]
    name = names[index] if names else None
    return name if name is not None and names.count(name) == 1 else f"input_{index}"


def body_block(function: FuncOp, what: str) -> Block:
    """
    The only block of `function`, which cannot be `what` ("interpreted", "lowered to tensors") without one.

    Raises UserError (unsupported, located) for a declaration and for a function of several blocks.
    """
    blocks = list(function.body.blocks)
    if len(blocks) == 1:
        return blocks[0]
    place = location_of(function)
    if not blocks:
        raise UserError(f"@{function.sym_name.data} is declared only and cannot be {what}", loc=place)
    branch = blocks[0].last_op
    raise UserError(
        f"@{function.sym_name.data} has several blocks and cannot be {what}",
        loc=location_of(branch) if branch is not None else place,
        notes=["write its control flow with the ops of scf: scf.if, scf.for, scf.while, scf.index_switch"],
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
