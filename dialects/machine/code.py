# SPDX-License-Identifier: Apache-2.0
"""What programs for the real machine are written with besides commands: states that are set, and what is around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from xdsl.dialects.builtin import I64, ArrayAttr, IntegerAttr, StringAttr
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def

from penstock.dialects.machine.part import IntegerProperty, MachinePart, NamedPart, PartFault
from penstock.dialects.machine.spelling import COPY, ID, Template, template_faults, template_of, unknown_fields

REGION_FIELDS = ("name", "pointer", "bytes", "writable")
"""What there is to say of memory off chip."""
BUILD_FIELDS = ("program", "sources", "flags")
"""What there is to say of a program to be built."""
QUEUES, TOKENS = "queues", "tokens"
ORDERS = ("program", "barrier", QUEUES, TOKENS)
"""What keeps commands in order: the machine itself, barriers, its queues, or waits for single commands."""


@irdl_op_definition
class StateOp(NamedPart):
    """
    Registers of the machine that commands depend on: a command that sets them, with fields.

    Commands say in `settings` what they need of it. It is set when that changes, outside of the loops in which it does
    not.
    """

    name = "machine.state"
    KIND: ClassVar[str] = "state"

    emit = prop_def(StringAttr)
    """How it is set, in C: a template over fields that it names, and `copy`, the number of the copy."""
    copies = opt_prop_def(IntegerAttr[I64])
    """How many of it there are, each with fields of its own; a command says which one it uses. One if it is absent."""

    assembly_format = "$sym_name `emit` $emit (`copies` $copies^)? (`origin` $origin^)? attr-dict"

    copy_count = IntegerProperty("copies", 1)

    @property
    def template(self) -> Template:
        """How it is set."""
        return Template.of(self.emit.data)

    @property
    def fields(self) -> tuple[str, ...]:
        """What commands say of it, in the order of the template."""
        found = template_of(self.emit)
        return tuple(dict.fromkeys(each.name for each in found.fields if each.name != COPY)) if found else ()

    def own_faults(self) -> Iterator[PartFault]:
        yield from template_faults("emit", self.emit)
        found = template_of(self.emit)
        if found is not None and self.copy_count > 1 and COPY not in found.names:
            yield PartFault("emit", f"a state with several copies names {{{COPY}}}, the one that is set")


@irdl_op_definition
class CodeOp(MachinePart):
    """How programs for the machine are written in C around their commands."""

    name = "machine.code"
    KIND: ClassVar[str] = "code"

    order = prop_def(StringAttr)
    """What keeps dependent commands in order: `program`, where the machine does as if each was complete before the next
    begins; `barrier`, where its units run on and only `barrier` waits for them; `queues`, as these spell; `tokens`,
    where commands that name `{id}` run on, those of a unit one after the other, and `wait` waits for one of them."""
    barrier = opt_prop_def(StringAttr)
    """How the processor waits until all commands are complete; a host need not."""
    wait = opt_prop_def(StringAttr)
    """How the processor waits until a command is complete: a template over `id`, the number that the command was given,
    or -1, which is none that there is anything to wait for. With the order `tokens` only."""
    begin = opt_prop_def(StringAttr)
    """What a program begins with."""
    region = opt_prop_def(StringAttr)
    """How memory off chip is made known that commands may reach: a template over `name`, a string, `pointer`, `bytes`
    and `writable`."""
    headers = opt_prop_def(ArrayAttr[StringAttr])
    """What it includes."""
    files = opt_prop_def(ArrayAttr[StringAttr])
    """Files that it is built with, by paths from the folder of the machine file."""
    flags = opt_prop_def(StringAttr)
    """Options that every compiler of it takes; of a host also the libraries, `-lopenblas`."""
    package = opt_prop_def(StringAttr)
    """Of a host: a Python package with headers in its folder `include` and libraries in its folder `lib`."""
    build_command = opt_prop_def(StringAttr, prop_name="build")
    """The command, in a makefile, that builds a program for the machine: a template over `program`, its name without
    the suffix `.elf`, `sources` and `flags`."""
    model = opt_prop_def(StringAttr)
    """A header among the files in which a model of the machine is defined: with it, and with `PENSTOCK_MODEL` defined,
    a compiler of the host builds the program."""

    assembly_format = (
        "`order` $order (`barrier` $barrier^)? (`wait` $wait^)? (`begin` $begin^)? (`region` $region^)?"
        " (`headers` $headers^)? (`files` $files^)? (`flags` $flags^)? (`package` $package^)?"
        " (`build` $build^)? (`model` $model^)?"
        " (`origin` $origin^)? attr-dict"
    )

    def own_faults(self) -> Iterator[PartFault]:
        if self.order.data not in ORDERS:
            yield PartFault("order", f"order must be one of {', '.join(ORDERS)}")
        if self.order.data == TOKENS and self.wait is None:
            yield PartFault("order", f'commands are ordered by "{TOKENS}", and nothing spells wait')
        if self.order.data != TOKENS and self.wait is not None:
            yield PartFault("wait", f'wait has no meaning without order = "{TOKENS}"')
        known = {"barrier": (), "wait": (ID,), "begin": (), "region": REGION_FIELDS, "build": BUILD_FIELDS}
        for key, fields in known.items():
            attr = self.properties.get(key)
            if isinstance(attr, StringAttr):
                yield from template_faults(key, attr)
                yield from unknown_fields(key, template_of(attr), fields)
