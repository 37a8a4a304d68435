# SPDX-License-Identifier: Apache-2.0
"""
What nodes look like whose operators have no schema in `onnx`: those that onnxruntime defines, in its own domain or
among ONNX's.

A form is written as `input skip gamma beta? bias?`: the names of inputs in order, `?` after one that may be left out,
`*` after one of which there may be any number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx import NodeProto
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.node import Importer, ImporterT, Unsupported, imports, operator_of

MICROSOFT = "com.microsoft"
"""The domain of the operators into which onnxruntime optimises graphs."""

FORMS: dict[str, Form] = {}
"""The forms of operators by name, as `imports` has them."""


REFUSED: dict[str, str] = {}
"""Operators that are refused, and why."""


@dataclass(frozen=True)
class Form:
    """The inputs, outputs and attributes that nodes of an operator may have."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Sequence[str]

    def check(self, proto: NodeProto) -> None:
        """
        Raise VerifyException for a node that lacks an input, or has more inputs or outputs than there are; Unsupported
        for an attribute that the importer does not know.
        """
        name, given = operator_of(proto), len(proto.input)
        while given and not proto.input[given - 1]:
            given -= 1
        is_open = any(word.endswith("*") for word in self.inputs)
        require(is_open or given <= len(self.inputs), f"{name} takes {len(self.inputs)} inputs, and has {given}")
        for index, word in enumerate(self.inputs):
            is_given = index < given and proto.input[index] != ""
            require(is_given or word[-1] in "?*", f"{name} needs its input {index}, {word}")
        most, outputs = len(self.outputs), len(proto.output)
        require(outputs <= most, f"{name} has {most} output{'s' if most > 1 else ''}, not {outputs}")
        seen: set[str] = set()
        for attribute in proto.attribute:
            if attribute.name in seen:
                raise VerifyException(f'its attribute "{attribute.name}" is there twice')
            seen.add(attribute.name)
            if attribute.name not in self.attributes:
                near = did_you_mean(attribute.name, self.attributes)
                raise Unsupported(f"its attribute {attribute.name}{f' ({near})' if near else ''}")


def formed(
    operator: str, inputs: str, outputs: str = "y", attributes: str = "", domain: str = MICROSOFT
) -> Callable[[ImporterT], ImporterT]:
    """Register the decorated function as the importer of an operator of a domain, whose nodes have a form."""
    name = f"{domain}.{operator}" if domain else operator

    def register(importer: ImporterT) -> ImporterT:
        FORMS[name] = Form(inputs.split(), outputs.split(), attributes.split())
        return imports(name)(importer)

    return register


def refused(operator: str, why: str, domain: str = MICROSOFT) -> None:
    """Say why an operator is not supported, in the message that lists it."""

    def refuse(node: object) -> list[None]:
        raise Unsupported(why)

    importer: Importer = refuse
    REFUSED[f"{domain}.{operator}"] = why
    imports(f"{domain}.{operator}")(importer)
