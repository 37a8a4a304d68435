"""A module at loop or accel level, as a program in C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, MemRefType, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, BlockArgument
from xdsl.utils.hints import isa
from xdsl.utils.target import Target

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.functions import body_block
from penstock.dialects.machine import find_target
from penstock.lowering.to_c.aliasing import restricted_arguments, written_arguments
from penstock.lowering.to_c.control import emit_block
from penstock.lowering.to_c.emitter import FunctionEmitter, Program, refuse, view_of_type
from penstock.lowering.to_c.memory import global_definition, scope_field
from penstock.lowering.to_c.prelude import HEADER, prelude
from penstock.lowering.to_c.source import CFunction, CSource, Parameter
from penstock.lowering.to_c.text import Expr, Names, Writer, comment_text, identifier
from penstock.lowering.to_c.types import c_type

ENTRY = "main"
"""The function that is run."""

KERNEL = """\
/* Compiled as one file, kernels are private; in several files, PENSTOCK_KERNEL is defined as nothing. */
#if !defined(PENSTOCK_KERNEL)
#define PENSTOCK_KERNEL static
#endif
#if defined(__GNUC__)
#define PENSTOCK_APART __attribute__((noinline))
#else
#define PENSTOCK_APART
#endif
"""


def emit_c(module: ModuleOp, *, name: str = ENTRY) -> CSource:
    """
    The C program of `module`, whose functions are called `<name>_...`.

    Requires the loop or the accel level with every buffer placed, and an `@main` whose arguments are its inputs,
    its weights (`graph.weight`) and its outputs (`graph.output`). The program keeps nothing outside its context
    and allocates nothing, so that several contexts may run at the same time. Raises UserError, located, for what
    C cannot hold.
    """
    name = name if name == ENTRY else identifier(name)
    functions = _reachable(module)
    entry = functions[ENTRY]
    roles = _roles(entry)
    target = find_target(module)
    globals_ = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, memref.GlobalOp)}
    symbols = {symbol: f"{name}_{identifier(symbol)}" for symbol in (*functions, *globals_)}
    program = Program(
        target,
        functions,
        symbols,
        globals_,
        written_arguments(functions, target),
        restricted_arguments(functions, ENTRY),
    )
    _check_inputs(entry, roles, program.written[ENTRY])
    kernels = tuple(
        _kernel(program, name, symbol, function) for symbol, function in functions.items() if symbol != ENTRY
    )
    text = _entry(program, name, entry, roles)
    constants = "\n".join(
        global_definition(op, symbols[symbol])
        for symbol, op in globals_.items()
        if any(symbols[symbol] in part for part in (text, *(kernel.text for kernel in kernels)))
    )
    arena = program.scope_ends.pop("", None)
    return CSource(
        name,
        _header(name, roles, arena, program),
        HEADER + "\n" + KERNEL + _spaced(prelude(program.helpers)),
        constants,
        kernels,
        text,
        roles.inputs,
        roles.weights,
        roles.outputs,
        arena or 0,
        dict(sorted(program.scope_ends.items())),
    )


def _spaced(text: str) -> str:
    return f"\n{text}" if text else ""


@dataclass(frozen=True)
class CTarget(Target):
    """`-t c`: the header and the program of a module at loop or accel level, one after the other."""

    name = "c"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        found = emit_c(module)
        output.write(f"/* {found.header_name} */\n{found.header}\n/* {found.name}.c */\n{found.source}")


# functions


def _reachable(module: ModuleOp) -> dict[str, func.FuncOp]:
    """`@main` and what it calls, in the order of the module; raises UserError if there is no `@main`."""
    known = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, func.FuncOp)}
    if ENTRY not in known or known[ENTRY].is_declaration:
        names = ", ".join(f"@{symbol}" for symbol in known) or "no functions"
        raise UserError("the module has no function @main, so it has no C", notes=[f"it has {names}"])
    body_block(known[ENTRY], "written as C")
    found = {ENTRY}
    pending = [known[ENTRY]]
    while pending:
        for op in pending.pop().walk():
            if not isinstance(op, func.CallOp):
                continue
            callee = op.callee.string_value()
            if callee not in known:
                near = did_you_mean(callee, known)
                raise UserError(
                    f"the module has no func.func @{callee}", loc=location_of(op), notes=[near] if near else []
                )
            if callee not in found:
                if known[callee].is_declaration:
                    raise refuse(op, f"@{callee} is declared, but not defined, so it has no C")
                body_block(known[callee], "written as C")
                found.add(callee)
                pending.append(known[callee])
    return {symbol: function for symbol, function in known.items() if symbol in found}


def _kernel(program: Program, name: str, symbol: str, function: func.FuncOp) -> CFunction:
    """The text of a function other than the entry."""
    if function.function_type.outputs.data:
        raise refuse(function, f"@{symbol} returns a value", "below tensor level functions write through arguments")
    writer = Writer()
    names = Names([*program.symbols.values()])
    emitter = FunctionEmitter(program, writer, names)
    parameters = [f"{name}_ctx *ctx"]
    for arg in function.body.block.args:
        parameters.append(_parameter(emitter, symbol, arg))
    prototype = f"PENSTOCK_KERNEL void {program.symbols[symbol]}({_wrapped(parameters)})"
    for line in _description(symbol, function):
        writer.line(line)
    with writer.block(f"PENSTOCK_APART {prototype}"):
        writer.line("(void)ctx;")
        emit_block(emitter, function.body.block)
    return CFunction(program.symbols[symbol], prototype, writer.text())


def _wrapped(parameters: Sequence[str]) -> str:
    """Parameters on one line, or where they are long, each on its own."""
    line = ", ".join(parameters)
    return line if len(line) <= 80 else "\n    " + ",\n    ".join(parameters)


def _parameter(emitter: FunctionEmitter, symbol: str, arg: BlockArgument) -> str:
    """The declaration of a parameter, and its value bound to the argument."""
    name = emitter.name(arg)
    if not isa(arg.type, MemRefType):
        ctype = emitter.ctype(arg.type, arg.block)
        emitter.values[arg] = Expr(name, is_atom=True)
        return f"{ctype.value} {name}"
    is_const = arg.index not in emitter.program.written[symbol]
    view = view_of_type(emitter, arg, name, is_const=is_const)
    emitter.values[arg] = view
    return f"{view.pointer_type}{'restrict ' if arg.index in emitter.program.restricted[symbol] else ''}{name}"


def _description(symbol: str, function: func.FuncOp) -> Iterator[str]:
    device = function.attributes.get("device")
    where = f" on {device.string_value()}" if isinstance(device, SymbolRefAttr) else ""
    place = location_of(function)
    origin = "" if place in ("", function.name) else f", {place}"
    yield f"/* @{comment_text(symbol + where + origin)} */"


# the entry


@dataclass(frozen=True)
class _Roles:
    """What each argument of `@main` is: its list, and its place in it."""

    lists: tuple[tuple[str, int], ...]
    inputs: tuple[Parameter, ...]
    weights: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]


def _roles(entry: func.FuncOp) -> _Roles:
    if entry.function_type.outputs.data:
        raise refuse(entry, "@main returns a value", "C comes from the loop or the accel level: lower the module first")
    found: dict[str, list[Parameter]] = {"inputs": [], "weights": [], "outputs": []}
    lists: list[tuple[str, int]] = []
    for arg, attributes in zip(entry.body.block.args, _argument_attributes(entry), strict=True):
        role, text = "inputs", _text(attributes, "graph.name") or f"input_{arg.index}"
        if (weight := _text(attributes, "graph.weight")) is not None:
            role, text = "weights", weight
        elif (output := _text(attributes, "graph.output")) is not None:
            role, text = "outputs", output
        if not isa(arg.type, MemRefType):
            raise refuse(entry, f"argument {arg.index} of @main is a {arg.type}, not a memref")
        lists.append((role, len(found[role])))
        found[role].append(Parameter(text, tuple(arg.type.get_shape()), c_type(arg.type.element_type, entry)))
    return _Roles(tuple(lists), *(tuple(found[role]) for role in ("inputs", "weights", "outputs")))


def _argument_attributes(entry: func.FuncOp) -> Sequence[Mapping[str, Attribute]]:
    if isa(entry.arg_attrs, ArrayAttr[DictionaryAttr]):
        return [attributes.data for attributes in entry.arg_attrs]
    return [{} for _ in entry.body.block.args]


def _text(attributes: Mapping[str, Attribute], key: str) -> str | None:
    found = attributes.get(key)
    return found.data if isinstance(found, StringAttr) else None


def _check_inputs(entry: func.FuncOp, roles: _Roles, written: frozenset[int]) -> None:
    for number, (role, _) in enumerate(roles.lists):
        if number in written and role != "outputs":
            raise UserError(
                f"@main writes to its argument {number}, which is no output",
                loc=location_of(entry),
                notes=['an output has the argument attribute graph.output = "NAME"'],
            )


def _entry(program: Program, name: str, entry: func.FuncOp, roles: _Roles) -> str:
    writer = Writer()
    emitter = FunctionEmitter(program, writer, Names([*program.symbols.values()]))
    writer.line(f"size_t {name}_context_size(void) {{ return sizeof({name}_ctx); }}")
    writer.line("")
    arrays = "const void *const *weights, const void *const *inputs, void *const *outputs"
    with writer.block(f"int {name}_run({name}_ctx *ctx, {arrays})"):
        for unused in ("weights", "inputs", "outputs"):
            if not any(role == unused for role, _ in roles.lists):
                writer.line(f"(void){unused};")
        for arg, (role, place) in zip(entry.body.block.args, roles.lists, strict=True):
            if not arg.uses:
                continue
            variable = emitter.name(arg)
            view = view_of_type(emitter, arg, variable, is_const=role != "outputs")
            emitter.values[arg] = view
            writer.line(f"{view.pointer_type}const {variable} = ({view.pointer_type}){role}[{place}];")
        writer.line("ctx->fault = 0;")
        writer.line("memset(&ctx->counters, 0, sizeof ctx->counters);")
        emit_block(emitter, entry.body.block)
        writer.line("return ctx->fault;")
    return writer.text()


# the header


def _header(name: str, roles: _Roles, arena: int | None, program: Program) -> str:
    """The text of the header; `arena` is the bytes that are used of the arena, None if no buffer lies in it."""
    guard = f"PENSTOCK_{name.upper()}_H"
    arrays: list[str] = []
    for title in ("inputs", "weights", "outputs"):
        parameters: tuple[Parameter, ...] = getattr(roles, title)
        arrays += [f"   {title}[{number}]  {comment_text(str(each))}" for number, each in enumerate(parameters)]
    memory = [("arena", arena, "intermediates, off chip")] if arena is not None else []
    memory += [(scope_field(scope), size, f'scope "{scope}"') for scope, size in sorted(program.scope_ends.items())]
    if program.scratch:
        memory.append(("scratch", program.scratch, "repacked operands"))
    # Where all buffers are without elements, their pointers still need an array.
    members = [
        f"  _Alignas(64) unsigned char {field}[{-(-max(size, 1) // 64) * 64}]; /* {comment_text(meaning)} */"
        for field, size, meaning in memory
    ]
    return _HEADER.format(
        guard=guard, name=name, arrays="\n".join(arrays) or "   none", members="".join(f"{m}\n" for m in members)
    )


_HEADER = """\
#ifndef {guard}
#define {guard}

#include <stddef.h>
#include <stdint.h>

/* What the last run did. */
typedef struct {name}_counters {{
  int64_t transfers;     /* commands of DMA engines */
  int64_t bytes_in;      /* moved from off chip, inside the windows */
  int64_t bytes_out;     /* moved off chip, inside the windows */
  int64_t bytes_on_chip; /* moved between scopes */
  int64_t commands;      /* commands of intrinsics */
  int64_t macs;          /* multiply-accumulates of intrinsics */
  int64_t host_macs;     /* multiply-accumulates of structured ops on the host */
}} {name}_counters;

/* The memory of one run at a time. Aligned to 64 bytes; needs no initialisation. */
typedef struct {name}_ctx {{
  {name}_counters counters;
  int32_t fault; /* 1: a division by zero, 2: an index outside its dimension */
{members}}} {name}_ctx;

size_t {name}_context_size(void);

/* Run once: 0, or the fault. Arrays are dense and must not overlap.
{arrays} */
int {name}_run({name}_ctx *ctx, const void *const *weights, const void *const *inputs, void *const *outputs);

#endif
"""
