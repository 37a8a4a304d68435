"""The body of a function as the one block that structured control flow leaves it."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of


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
