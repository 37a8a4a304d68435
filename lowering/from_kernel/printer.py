# SPDX-License-Identifier: Apache-2.0
"""
From the syntax tree of the kernel language to its text, in the one form that `penstock format` writes.

What is printed parses back to an equal tree with the same comments, and prints the same again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.lowering.from_kernel.syntax import (
    PRECEDENCE,
    PREFIX_PRECEDENCE,
    Access,
    Assignment,
    Binary,
    Binding,
    Block,
    Call,
    CallStatement,
    Commented,
    Constant,
    Declaration,
    Declarator,
    Definition,
    Expression,
    Function,
    If,
    Kernel,
    Loop,
    LoopRange,
    Name,
    Number,
    Reducer,
    Slice,
    Source,
    Statement,
    Unary,
)

MAX_WIDTH = 100
"""Columns of a head of a kernel that stays on one line."""
_INDENT = "    "

_ATOM = PRECEDENCE["**"] + 1
"""What needs no brackets anywhere."""


def print_source(source: Source) -> str:
    """The text of a syntax tree."""
    lines: list[str] = []
    for definition in source.definitions:
        if lines and not definition.before[:1] == ("",):
            lines.append("")
        lines += definition.before
        lines += _definition(definition)
    return "".join(f"{line}\n" for line in (*lines, *source.after))


def print_head(kernel: Kernel) -> str:
    """The name of a kernel with its constants, parameters and results, on one line."""
    start, parameters, end = _head_parts(kernel)
    return f"{start}{', '.join(parameters)}{end}"


def print_expression(expression: Expression) -> str:
    """The text of an expression, with the brackets that it needs."""
    return _expression(expression, 0)


def _definition(definition: Definition) -> Iterator[str]:
    match definition:
        case Function(name=name, parameters=parameters, value=value):
            yield _beside(f"function {name}({', '.join(parameters)}) = {print_expression(value)}", definition)
        case Reducer():
            head = f"reducer {definition.name}({definition.left}, {definition.right})"
            identity, value = print_expression(definition.identity), print_expression(definition.value)
            yield _beside(f"{head} from {identity} = {value}", definition)
        case Kernel():
            head = _head(definition)
            yield _beside(head[0], definition)
            yield from head[1:]
            yield from _body(definition.body, _INDENT)
            yield "}"


def _head(kernel: Kernel) -> list[str]:
    """The lines of the head of a kernel, up to its brace: one, or one a parameter where that is too long."""
    start, parameters, end = _head_parts(kernel)
    one_line = f"{start}{', '.join(parameters)}{end} {{"
    if len(one_line) <= MAX_WIDTH or not parameters:
        return [one_line]
    *others, last = parameters
    return [start, *(f"{_INDENT}{each}," for each in others), f"{_INDENT}{last}", f"{end} {{"]


def _head_parts(kernel: Kernel) -> tuple[str, list[str], str]:
    """What stands before the parameters, these, and what stands after them."""
    constants = ", ".join(_constant(each) for each in kernel.constants)
    start = f"kernel {kernel.name}[{constants}](" if constants else f"kernel {kernel.name}("
    end = f") -> ({', '.join(print_declarator(each) for each in kernel.results)})"
    return start, [print_declarator(each) for each in kernel.parameters], end


def _constant(constant: Constant) -> str:
    return constant.name if constant.default is None else f"{constant.name} = {print_expression(constant.default)}"


def print_declarator(declared: Declarator) -> str:
    """The text of a tensor or a scalar as it is declared."""
    scope = f"{declared.scope} " if declared.scope is not None else ""
    dims = f"[{', '.join(map(print_expression, declared.dims))}]" if declared.dims else ""
    return f"{scope}{declared.element} {declared.name}{dims}"


def _body(block: Block, indent: str) -> Iterator[str]:
    for statement in block.statements:
        yield from _indented(statement.before, indent)
        yield from _statement(statement, indent)
    yield from _indented(block.after, indent)


def _indented(comments: Sequence[str], indent: str) -> Iterator[str]:
    for comment in comments:
        yield f"{indent}{comment}" if comment else ""


def _statement(statement: Statement, indent: str) -> Iterator[str]:
    match statement:
        case Declaration(declared=declared, value=value):
            text = print_declarator(declared) + ("" if value is None else f" = {print_expression(value)}")
            yield _beside(indent + text, statement)
        case Assignment(target=target, operator=operator, value=value):
            text = f"{print_expression(target)} {operator} {print_expression(value)}"
            yield _beside(indent + text, statement)
        case CallStatement(call=call):
            yield _beside(indent + print_expression(call), statement)
        case Loop(kind=kind, ranges=ranges, body=body):
            yield _beside(f"{indent}{kind} {', '.join(map(_range, ranges))} {{", statement)
            yield from _body(body, indent + _INDENT)
            yield f"{indent}}}"
        case If(condition=condition, then=then, otherwise=otherwise):
            yield _beside(f"{indent}if {print_expression(condition)} {{", statement)
            yield from _body(then, indent + _INDENT)
            if otherwise is not None:
                yield f"{indent}}} else {{"
                yield from _body(otherwise, indent + _INDENT)
            yield f"{indent}}}"


def _beside(text: str, node: Commented) -> str:
    return f"{text}  {node.beside}" if node.beside else text


def _range(over: LoopRange) -> str:
    step = "" if over.step is None else f":{print_expression(over.step)}"
    return f"{over.name} in {print_expression(over.start)}:{print_expression(over.stop)}{step}"


def _expression(node: Expression | Slice | Binding, level: int) -> str:
    """The text of a node, in brackets if it binds less than `level`."""
    match node:
        case Number(text=text):
            return text
        case Name(name=name):
            return name
        case Slice(start=start, stop=stop, size=size):
            first = "" if start is None else print_expression(start)
            if size is not None:
                return f"{first}:+{print_expression(size)}"
            return f"{first}:{'' if stop is None else print_expression(stop)}"
        case Binding(name=name, start=start, stop=stop):
            return f"{name} in {print_expression(start)}:{print_expression(stop)}"
        case Access(tensor=tensor, indices=indices, otherwise=otherwise):
            outside = "" if otherwise is None else f" else {print_expression(otherwise)}"
            return f"{tensor}[{', '.join(_expression(each, 0) for each in indices)}{outside}]"
        case Call(function=function, arguments=arguments):
            return f"{function}({', '.join(_expression(each, 0) for each in arguments)})"
        case Unary(operator=operator, operand=operand):
            own = PREFIX_PRECEDENCE[operator]
            space = " " if operator == "not" else ""
            return _bracketed(f"{operator}{space}{_expression(operand, own)}", own, level)
        case Binary(operator="**", left=left, right=right):
            own = PRECEDENCE["**"]
            return _bracketed(f"{_expression(left, _ATOM)}**{_expression(right, PREFIX_PRECEDENCE['-'])}", own, level)
        case Binary(operator=operator, left=left, right=right):
            own = PRECEDENCE[operator]
            first = _expression(left, own + (own == PRECEDENCE["=="]))
            return _bracketed(f"{first} {operator} {_expression(right, own + 1)}", own, level)


def _bracketed(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text
