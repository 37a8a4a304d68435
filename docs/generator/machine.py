# SPDX-License-Identifier: Apache-2.0
"""The tables of a machine file, with their keys."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generator.source import module_called

from penstock.dialects.machine import IntrinsicOp
from penstock.lowering.machine_keys import BEHAVIOUR_KEYS, MACHINE_KEYS, OPERAND_KEYS, PART_KINDS
from penstock.tools.markdown import code, in_one_line, reflowed, table
from penstock.tools.op_documentation import key_meanings


def machine_parts() -> Iterator[list[str]]:
    """The parts of the page on machine files."""
    for name in ("machine_keys", "machine_file", "from_machine_toml", "machine_templates"):
        module = module_called(f"penstock.lowering.{name}")
        assert module is not None
        yield reflowed(module.docstring)
    yield ["## `[machine]`"]
    yield _keys([(key, each.form, "required", each.meaning) for key, each in MACHINE_KEYS.items()])
    for kind, op in PART_KINDS.items():
        yield [f"## `[[{kind}]]`"]
        yield reflowed(op.__doc__ or "")
        rows = [
            (key, each.form, "required" if each.required else "", of) for key, (each, of) in key_meanings(op).items()
        ]
        yield _keys(rows)
        if op is IntrinsicOp:
            yield ["Its behaviour is written as an expression, with a table for each operand:"]
            yield _keys([(key, "", "", meaning) for key, meaning in BEHAVIOUR_KEYS.items()])
            yield _keys([(key, each.form, "", each.meaning) for key, each in OPERAND_KEYS.items()])
            grammar = module_called("penstock.lowering.tensor_expression")
            assert grammar is not None
            yield reflowed(grammar.docstring)


def _keys(rows: list[tuple[str, str, str, str]]) -> list[str]:
    return table(
        ("key", "holds", "", "meaning"), [(code(key), form, need, in_one_line(of)) for key, form, need, of in rows]
    )
