# SPDX-License-Identifier: Apache-2.0
"""What the functions of generated C are called: kernels after the nodes of the model that they compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.dialects import func
from xdsl.dialects.builtin import NameLoc

from penstock.lowering.codegen.text import Names, identifier

THREADS = ("start", "stop", "threads", "pool", "own", "part", "parallel")
"""What follows the name of a program in the names that belong to its threads."""
MOST_NODES = 3
"""A kernel of more nodes is called after the first and the last."""
_MOST_CHARACTERS = 56


def program_names(name: str) -> Names:
    """The names of a program that is called `name`, which has taken those of its entry."""
    return Names([f"{name}_{each}" for each in ("run", "ctx", "counters", "context_size", *THREADS)])


def function_names(
    names: Names, name: str, entry: str, functions: Mapping[str, func.FuncOp], others: Iterable[str]
) -> dict[str, str]:
    """
    The names, which begin with `name`, of functions and of `others`, by symbol: that of a kernel is made of the names
    of its nodes, in program order, and of its symbol where the text has no names.
    """
    found: dict[str, str] = {}
    for symbol, function in functions.items():
        nodes = [] if symbol == entry else _nodes(function)
        if len(nodes) > MOST_NODES:
            nodes = [nodes[0], "to", nodes[-1]]
        hint = "_".join(identifier(each) for each in nodes) or identifier(symbol)
        found[symbol] = names.hinted(f"{name}_{hint[:_MOST_CHARACTERS]}")
    return found | {symbol: names.hinted(f"{name}_{identifier(symbol)}") for symbol in others}


def _nodes(function: func.FuncOp) -> list[str]:
    """The names of the nodes that the ops of a function come from; passes may have added ops without one."""
    ops = (op for op in function.walk() if op is not function)
    # A constant or a buffer stands before all ops, and comes from the one that it serves.
    locations = (op.location for op in ops if op.operands or op.regions or not op.results)
    return list(dict.fromkeys(each.desc.data for each in locations if isinstance(each, NameLoc)))
