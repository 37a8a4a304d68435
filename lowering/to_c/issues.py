# SPDX-License-Identifier: Apache-2.0
"""Commands of a real machine in C: each is the template of its part, filled."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr

from penstock.dialects.accel_issue import CodeOp, IssueOp, SetOp, SpelledOp
from penstock.dialects.machine import IntrinsicOp, TargetOp, Template
from penstock.dialects.machine.spelling import ID
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.views import View, unsupported
from penstock.lowering.to_c.emitter import FunctionEmitter


def emit_issue(emitter: FunctionEmitter, op: IssueOp) -> None:
    """One command of an engine or an intrinsic."""
    target = _target(emitter, op)
    part = target.dmas().get(op.part_name) or target.intrinsics()[op.part_name]
    if part.template is None:
        raise unsupported(op, f"{part.title} is not spelled")
    values = _values(emitter, op)
    for operand, scope in op.scope_names().items():
        if operand in values:
            values[operand] = f"({values[operand]} + {values[f'{operand}.offset']})"
            continue
        address = target.scope(scope).address
        if address is None:
            values[operand] = values[f"{operand}.offset"]
        else:
            spelled = Template.of(address.data)
            values[operand] = f"({spelled.fill({place: values[f'{operand}.{place}'] for place in spelled.names})})"
    if op.says is not None:
        emitter.writer.comment(op.says.data)
    if op.id is not None:
        values[ID] = emitter.name(op.id)
        emitter.values[op.id] = Expr(values[ID], is_atom=True)
        emitter.writer.line(f"int64_t {values[ID]};")
    _write(emitter, part.template, values)
    if target.is_host and isinstance(part, IntrinsicOp) and part.macs_per_issue():
        extents = [values[dim] for dim in part.dims if dim in values]
        emitter.count("macs", " * ".join(["(int64_t)1", *extents]))


def emit_set(emitter: FunctionEmitter, op: SetOp) -> None:
    """A state is set."""
    _write(emitter, _target(emitter, op).states()[op.part_name].template, _values(emitter, op))


def emit_code(emitter: FunctionEmitter, op: CodeOp) -> None:
    """What the machine says under a key; constants are made known before anything reaches them."""
    target = _target(emitter, op)
    text = _text_of(target, op)
    if text is None:
        raise unsupported(op, f"the machine does not say how a {op.key.data} is written")
    code = target.code()
    if op.key.data == "begin" and code is not None and code.region is not None:
        region = Template.of(code.region.data)
        for name in emitter.program.globals:
            symbol = emitter.program.symbols[name]
            known = {"name": f'"{symbol}"', "pointer": symbol, "bytes": f"sizeof {symbol}", "writable": "0"}
            _write(emitter, region, known)
    _write(emitter, Template.of(text), {} if op.id is None else {ID: emitter.scalar(op.id).atom})


def _text_of(target: TargetOp, op: CodeOp) -> str | None:
    """What the machine says under a key: of its `[code]`, or of a queue."""
    key, ends = op.key.data, tuple(each.data for each in op.ends or ())
    if ends:
        part = next((each for each in target.queues() if (each.source, each.destination) == ends), None)
    else:
        part = target.code()
    found = None if part is None else part.properties.get(key)
    return found.data if isinstance(found, StringAttr) else None


def _values(emitter: FunctionEmitter, op: SpelledOp) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in op.field_values().items():
        known = emitter.values[value]
        found[name] = known.pointer if isinstance(known, View) else known.atom
    return found


def _target(emitter: FunctionEmitter, op: SpelledOp | CodeOp) -> TargetOp:
    target = emitter.program.target
    if target is None:
        raise unsupported(op, f"{op.name} needs a machine, and the module holds none")
    return target


def _write(emitter: FunctionEmitter, template: Template, values: dict[str, str]) -> None:
    for line in template.fill(values).strip().splitlines():
        emitter.writer.line(line.strip())
