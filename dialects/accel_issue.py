# SPDX-License-Identifier: Apache-2.0
"""
Ops of `accel` below its commands: what a processor writes to a machine, one by one, in the order of the program.

`accel-to-issues` makes them of commands; each becomes a line of C, by the template of the part that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IndexType, MemRefType, StringAttr, SymbolRefAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

WAIT = "wait"
CODE_KEYS = ("begin", "barrier", WAIT)
"""The texts of `machine.code` that `accel.code` stands for."""
QUEUE_KEYS = ("push", "pop")
"""Those of `machine.queue`."""


class SpelledOp(IRDLOperation):
    """What a template writes: the fields by name, each with its value."""

    part = prop_def(SymbolRefAttr)
    """The part of the machine whose template it is."""
    fields = prop_def(ArrayAttr[StringAttr])
    """The names of the fields."""
    values = var_operand_def()
    """The value of each: an index, or a memref off chip, of which the address of the first element is meant."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    @property
    def part_name(self) -> str:
        return self.part.string_value()

    def field_values(self) -> dict[str, SSAValue]:
        """The value of each field."""
        return {name.data: value for name, value in zip(self.fields, self.values, strict=True)}

    def scope_names(self) -> dict[str, str]:
        """The scope of each operand whose address is spelled."""
        scopes = self.properties.get("scopes")
        pairs = scopes.data.items() if isinstance(scopes, DictionaryAttr) else ()
        return {name: attr.data for name, attr in pairs if isinstance(attr, StringAttr)}

    def verify_(self) -> None:
        names = [name.data for name in self.fields]
        if len(names) != len(self.values):
            raise VerifyException(f"{len(names)} fields for {len(self.values)} values")
        for name, value in zip(names, self.values, strict=True):
            if names.count(name) > 1:
                raise VerifyException(f'field "{name}" is given twice')
            if not isinstance(value.type, IndexType) and not (
                isa(value.type, MemRefType) and not isinstance(value.type.memory_space, StringAttr)
            ):
                raise VerifyException(f'field "{name}" is an index or a memref off chip, not {value.type}')


@irdl_op_definition
class IssueOp(SpelledOp):
    """
    Issue one command of an engine or an intrinsic.

    Fields that are called `state.field` say what the states that the command depends on must be; `accel-configure` sets
    them before, and adds the field `state` where a state has several copies: the number of the one that is used. The
    result, of a command that runs on, is the number that a wait for it names.

    ```mlir
    accel.issue @mvin ["src", "dst.row", "rows", "columns", "load.stride"]
      (%x, %row, %rows, %columns, %stride : memref<40x36xi8>, index, index, index, index)
    ```
    """

    name = "accel.issue"

    scopes = opt_prop_def(DictionaryAttr)
    """The scope of each operand whose address is spelled."""
    says = opt_prop_def(StringAttr)
    """What it does, for people."""
    id = opt_result_def(IndexType())
    """The number that it is known by."""

    assembly_format = (
        "$part $fields (`(` $values^ `:` type($values) `)`)? (`in` $scopes^)? (`says` $says^)? attr-dict"
        " (`->` type($id)^)?"
    )

    def __init__(
        self,
        part: str,
        fields: Mapping[str, SSAValue],
        scopes: Mapping[str, str],
        says: str | None = None,
        *,
        runs_on: bool = False,
    ):
        super().__init__(
            operands=[list(fields.values())],
            result_types=[IndexType() if runs_on else None],
            properties={
                "part": SymbolRefAttr(part),
                "fields": ArrayAttr(StringAttr(name) for name in fields),
                "scopes": DictionaryAttr({name: StringAttr(scope) for name, scope in scopes.items()})
                if scopes
                else None,
                "says": None if says is None else StringAttr(says),
            },
        )


@irdl_op_definition
class SetOp(SpelledOp):
    """
    Set a state of the machine, of which `copy` is one of several copies.

    ```mlir
    accel.set @load ["stride", "copy"] (%stride, %one : index, index)
    ```
    """

    name = "accel.set"

    assembly_format = "$part $fields (`(` $values^ `:` type($values) `)`)? attr-dict"

    def __init__(self, part: str, fields: Mapping[str, SSAValue]):
        super().__init__(
            operands=[list(fields.values())],
            properties={"part": SymbolRefAttr(part), "fields": ArrayAttr(StringAttr(name) for name in fields)},
        )


@irdl_op_definition
class CodeOp(IRDLOperation):
    """
    What the machine's `machine.code` says under a key: `begin`, `barrier`, where the processor waits for all commands,
    or `wait`, where it does for one; or a queue from one unit to another, `push` or `pop`.

    ```mlir
    accel.code "barrier"
    accel.code "wait" for %id
    accel.code "push" of ["load", "execute"]
    ```
    """

    name = "accel.code"

    key = prop_def(StringAttr)
    """The key."""
    ends = opt_prop_def(ArrayAttr[StringAttr])
    """Of a queue: the unit that pushes, and the one that pops."""
    id = opt_operand_def(IndexType())
    """The number of the command that is waited for."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$key (`of` $ends^)? (`for` $id^)? attr-dict"

    def __init__(self, key: str, ends: Sequence[str] = (), id: SSAValue | None = None):
        names = ArrayAttr(StringAttr(each) for each in ends) if ends else None
        super().__init__(operands=[id], properties={"key": StringAttr(key), "ends": names})

    def verify_(self) -> None:
        known = CODE_KEYS if self.ends is None else QUEUE_KEYS
        if self.key.data not in known:
            raise VerifyException(f"the key is one of {', '.join(known)}")
        if self.ends is not None and len(self.ends) != 2:
            raise VerifyException(f"a queue has two ends, not {len(self.ends)}")
        if (self.id is not None) != (self.key.data == WAIT):
            raise VerifyException(f'"{WAIT}" names a command, and nothing else does')


OPS = (IssueOp, SetOp, CodeOp)
