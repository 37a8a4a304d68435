"""What the rules of scalar ops share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import Operation, SSAValue

from penstock.lowering.to_c.emitter import FunctionEmitter, refuse
from penstock.lowering.to_c.text import Expr
from penstock.lowering.to_c.types import CType

Rule = Callable[[FunctionEmitter, Any], Expr]


def type_of(emitter: FunctionEmitter, value: SSAValue) -> CType:
    """The C type of a scalar."""
    return emitter.ctype(value.type, value.owner)


def result_type(emitter: FunctionEmitter, op: Operation) -> CType:
    """The C type of the result of an op."""
    return emitter.ctype(op.results[0].type, op)


def operands_of(emitter: FunctionEmitter, op: Operation) -> list[Expr]:
    """The expressions of the operands."""
    return [emitter.scalar(operand) for operand in op.operands]


def unsigned_of(ctype: CType) -> str:
    """The unsigned type of the same width."""
    return f"uint{ctype.bits}_t" if not ctype.is_bool else "uint8_t"


def call(function: str, *operands: Expr | str) -> Expr:
    """A call of a C function."""
    texts = [each.text if isinstance(each, Expr) else each for each in operands]
    return Expr(f"{function}({', '.join(texts)})", is_atom=True)


def cast(type: str, operand: Expr) -> Expr:
    """A conversion."""
    return Expr(f"({type}){operand.atom}")


def integer_helper(what: str, on_bool: str | None = None, *, may_fault: bool = False) -> Rule:
    """A helper of the prelude; on i1 the operator `on_bool`."""

    def rule(emitter: FunctionEmitter, op: Operation) -> Expr:
        ctype = result_type(emitter, op)
        operands = operands_of(emitter, op)
        if ctype.is_bool:
            if on_bool is None:
                raise refuse(op, f"{op.name} of i1 cannot be lowered to C")
            return Expr(f"{operands[0].atom} {on_bool} {operands[1].atom}")
        fault = ["&ctx->fault"] if may_fault else []
        return call(emitter.helper(what, ctype), *operands, *fault)

    return rule
