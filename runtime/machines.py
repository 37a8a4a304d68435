# SPDX-License-Identifier: Apache-2.0
"""The machine that a program is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import USAGE, UserError, location_of
from penstock.dialects.machine import find_target


def attach_machine(module: ModuleOp, machine: str | None, options: Mapping[str, object] | None = None) -> None:
    """
    Put a machine, by name or by the path of its file, at the start of a module that has none; `options` change its
    numbers, see `machine_options`.

    Raises UserError for an unknown machine, for a module that is made for another one, for options that the machine
    does not take, and for options without a machine that they could change: that of a module stays as it is.
    """
    present = find_target(module)
    if options and (machine is None or present is not None):
        if present is None:
            message = "there is no machine whose numbers could be set"
            raise UserError(message, notes=["say which: --machine NAME"], status=USAGE)
        message = f'the module holds the machine "{present.machine_name}" already, whose numbers cannot be set'
        raise UserError(message, notes=["what was decided for it may be wrong for another: edit its machine.target"])
    if machine is None:
        return
    # Slow to import, and programs without a machine need none of it.
    from penstock.lowering.from_machine_toml import load_machine

    target = load_machine(machine, options)
    if present is None:
        Rewriter.insert_op(target, InsertPoint.at_start(module.body.block))
    elif present.machine_name != target.machine_name:
        message = f'the module is made for the machine "{present.machine_name}", not for "{target.machine_name}"'
        raise UserError(message, loc=location_of(present))


@dataclass(frozen=True)
class AttachMachinePass(ModulePass):
    """
    Put a machine at the start of the module, as `--machine` does; a module that is made for it already stays as it is.

    Raises UserError for an unknown machine, and for a module that is made for another one.

    Before:
    ```mlir
    func.func @main() {
      func.return
    }
    ```
    After (`attach-machine{machine="host"}`):
    ```mlir
    machine.target @host frequency 1000 origin {frequency = "assumed"} {
      machine.unit @cpu
    }
    func.func @main() {
      func.return
    }
    ```
    """

    name = "attach-machine"

    machine: str
    """A machine of `penstock list machines`, or the path of a machine file."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        attach_machine(op, self.machine)
