# SPDX-License-Identifier: Apache-2.0
"""Scheduling one kernel by hand, from Python: `penstock.schedule`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp, TensorType
from xdsl.dialects.transform import NamedSequenceOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.files import write_whole
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.kernels import device_of, is_mover, kernels, machine_of, origin_of
from penstock.passes.schedule.deciding import sequence_of
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import LOOPS, ON_CHIP, SECTIONS, START, changes, section_begun_by
from penstock.runtime.compiler import load_input
from penstock.runtime.interpreter import run_function
from penstock.runtime.levels import level_of
from penstock.runtime.pass_manager import run_passes, verify
from penstock.runtime.pipeline import passes_for
from penstock.runtime.schedules import schedules_text

if TYPE_CHECKING:
    from onnx import ModelProto

Array = NDArray[Any]
Op = TypeVar("Op", bound=Operation)

FIRST = "tile"
"""The pass that decides the first section: those before it make the kernels."""


class KernelSchedule(Schedule):
    """
    The schedule of one kernel of a program, which its methods write and apply; the text is `str` of it.

    With `check` the kernel is executed before and after each step on small integers, and a step that changes a bit of
    what it computes raises UserError. With `show` the kernel is printed to stderr after each step.
    """

    def __init__(self, program: ModuleOp, ctx: PenstockContext, name: str, *, check: bool, show: bool):
        self._program, self._ctx, self._name = program, ctx, name
        self._written: dict[str, NamedSequenceOp] = {}
        """The sections before those of `sequence`, if they are said of the kernel that this one was made of."""
        self._check, self._show = check, show
        self.module = program
        """The program as it is now."""
        self._inputs: list[Array] = []
        self._expected: list[Array] | None = None
        self._run_until(FIRST, inclusive=False)
        before, section = {kernel.sym_name.data: kernel for kernel in kernels(self.module)}, START
        if name not in before and (is_mover(name) or origin_of(name) in before):
            self._run_until(ON_CHIP, inclusive=True)
            section = ON_CHIP
        found = self._find(name)
        super().__init__(found, self._target(), sequence_of(ctx, found))
        self.enter(section)
        self._begin()

    def append(self, op: Op) -> Op:
        """Append an op and apply it, as `Schedule` does; then check and print, if asked to."""
        found = super().append(op)
        if not changes(op):
            return found
        verify(self.module)
        if self._check:
            self._compare(op)
        if self._show:
            print(f"// after {op.name}\n{self.state.kernel}", file=sys.stderr)
        return found

    def lower(self, to: str, *, kernel: str | None = None) -> None:
        """
        Let the compiler run the rest of its passes up to one of `SECTIONS` on the whole program, and go on after it.

        All handles are invalid then. Where `mem-promote` has made another kernel of this one, it is the one that the
        schedule goes on with; `kernel` says which if it has made several. Raises UserError, and leaves schedule and
        program alone, for another pass, for one after which the schedule goes on already, and if it is not known which
        kernel is meant.
        """
        if to not in SECTIONS:
            raise UserError(f'a schedule does not go on after "{to}"', notes=[nearest_or_all(to, SECTIONS, "passes")])
        begun = [name for op in self.sequence.body.block.ops if (name := section_begun_by(op)) is not None]
        if begun and SECTIONS.index(to) <= SECTIONS.index(begun[-1]):
            raise UserError(f'the schedule goes on after "{begun[-1]}" already', notes=["begin another schedule"])
        if to != LOOPS and self.state.target is None:
            raise UserError(f'kernel @{self._name} runs on the host, which has no scopes: "{to}" does nothing for it')
        schedules, module, applied = self._ctx.schedules, self.module, self._ctx.schedules.applied
        written = {**self._written, self._name: self.sequence}
        schedules.given = {name: sequence.clone() for name, sequence in written.items()}
        schedules.applied = {}
        schedules.left_out = set()
        try:
            self._run_until(to, inclusive=True)
            found = self._find(kernel)
        except UserError:
            self.module, schedules.applied = module, applied
            raise
        finally:
            schedules.given = {}
        if found.sym_name.data != self._name:
            self._written, self._name = written, found.sym_name.data
        super().__init__(found, self._target(), sequence_of(self._ctx, found))
        self.enter(to)
        self._begin()

    def save(self, path: str | Path) -> None:
        """Write the schedule as a file that `--schedule` takes."""
        write_whole(Path(path), str(self))

    def __str__(self) -> str:
        return schedules_text(self._ctx, {**self._written, self._name: self.sequence})

    def _repr_html_(self) -> str:
        from penstock.runtime.display import text_html

        return text_html(str(self))

    def _run_until(self, name: str, *, inclusive: bool) -> None:
        self.module = self._program.clone()
        passes = list(passes_for(self.module, "accel", None))
        names = [each.name for each in passes]
        if name not in names:
            raise UserError(
                f'the pass "{name}" is not run on a program at {level_of(self.module)} level',
                notes=["schedules are for programs at graph or tensor level"],
            )
        passes = passes[: names.index(name) + int(inclusive)]
        run_passes(self._ctx, self.module, passes)

    def _find(self, name: str | None = None) -> func.FuncOp:
        """The kernel of a name; without one, the kernel that this one is now."""
        found = {kernel.sym_name.data: kernel for kernel in kernels(self.module)}
        made = [each for each in found if origin_of(each) == self._name] or [self._name]
        if name is None and len(made) > 1:
            listed = ", ".join(f"@{each}" for each in made)
            raise UserError(
                f'"{ON_CHIP}" has made several kernels of @{self._name}: {listed}',
                notes=[f'say which: lower(..., kernel="{made[0]}")'],
            )
        name = name or made[0]
        if name not in found:
            raise UserError(f"the program has no kernel @{name}", notes=[nearest_or_all(name, found, "kernels")])
        return found[name]

    def _target(self) -> TargetOp | None:
        target = machine_of(self.module)
        on_machine = target is not None and device_of(self._find(self._name)) == target.sym_name.data
        return target if on_machine else None

    def _begin(self) -> None:
        """Compute what the kernel computes as it is now."""
        if self._check:
            rng = np.random.default_rng(0)
            types = self.state.kernel.function_type.inputs.data
            self._inputs = [_draw(rng, type, self._name) for type in types]
            self._expected = self._results()

    def _results(self) -> list[Array]:
        arrays = [array.copy() for array in self._inputs]
        results = run_function(self.module, self._name, arrays)
        types = self.state.kernel.function_type.inputs.data
        written = [array for array, type in zip(arrays, types, strict=True) if isa(type, MemRefType)]
        return [*written, *map(np.asarray, results)]

    def _compare(self, op: Operation) -> None:
        assert self._expected is not None
        for before, after in zip(self._expected, self._results(), strict=True):
            if before.tobytes() != after.tobytes():
                raise UserError(f"{op.name} changed what @{self._name} computes: this is a fault of the primitive")


def _draw(rng: np.random.Generator, type: Attribute, kernel: str) -> Array:
    if not isa(type, TensorType[Attribute]) and not isa(type, MemRefType[Attribute]):
        raise UserError(f"@{kernel} takes a {type}, so its steps cannot be checked")
    return rng.integers(-4, 5, tuple(type.get_shape())).astype(numpy_dtype(type.element_type))


def schedule(
    model: str | Path | ModelProto,
    kernel: str,
    *,
    machine: str | None = None,
    dims: Mapping[str, int] | None = None,
    check: bool = False,
    show: bool = False,
) -> KernelSchedule:
    """
    The schedule, yet empty, of one kernel of a model, of a file of IR at graph or tensor level, or of a file in the
    kernel language; `dims` are the sizes of symbolic dimensions.

    The program is compiled up to where kernels are cut into tiles. Raises UserError for an unknown kernel.
    """
    from penstock.runtime.machines import attach_machine

    is_text = isinstance(model, str | Path) and Path(model).suffix == ".pk"
    program = load_input(model, dims=dims, kernel=kernel if is_text else None)
    if machine is not None:
        attach_machine(program.module, machine)
    return KernelSchedule(program.module, program.ctx, kernel, check=check, show=show)
