"""Scheduling one kernel by hand, from Python: `penstock.schedule`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp, TensorType
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UnknownName, UserError, nearest_or_all
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.files import write_whole
from penstock.passes.analysis.kernels import device_of, kernels, machine_of
from penstock.passes.schedule.deciding import note_of_missing
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import SECTIONS, changes, section_begun_by
from penstock.runtime.compiler import load_input, passes_for
from penstock.runtime.interpreter import run_function
from penstock.runtime.pass_manager import run_passes, verify
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
        self._check, self._show = check, show
        self.module = program
        """The program as it is now."""
        self._inputs: list[Array] = []
        self._expected: list[Array] | None = None
        self._run_until(FIRST, inclusive=False)
        super().__init__(self._find(), self._target())
        ctx.schedules.applied[name] = self.sequence
        self._begin()

    def append(self, op: Op) -> Op:
        """Append an op and apply it, as `Schedule` does; then check and print, if asked to."""
        try:
            op.verify()
        except VerifyException as error:
            notes = [error.note] if isinstance(error, UnknownName) else []
            op.erase()
            raise UserError(f"{op.name}: {error}", notes=notes) from None
        found = super().append(op)
        if not changes(op):
            return found
        verify(self.module)
        if self._check:
            self._compare(op)
        if self._show:
            print(f"// after {op.name}\n{self.state.kernel}", file=sys.stderr)
        return found

    def lower(self, to: str) -> None:
        """
        Let the compiler run the rest of its passes up to one of `SECTIONS` on the whole program, and go on after it.

        All handles are invalid then. Raises UserError, and leaves schedule and program alone, for another pass, for
        one after which the schedule goes on already, and where the kernel has another name afterwards.
        """
        if to not in SECTIONS:
            raise UserError(f'a schedule does not go on after "{to}"', notes=[nearest_or_all(to, SECTIONS, "passes")])
        begun = [name for op in self.sequence.body.block.ops if (name := section_begun_by(op)) is not None]
        if begun and SECTIONS.index(to) <= SECTIONS.index(begun[-1]):
            raise UserError(f'the schedule goes on after "{begun[-1]}" already', notes=["begin another schedule"])
        schedules, module, applied = self._ctx.schedules, self.module, self._ctx.schedules.applied
        schedules.given = {self._name: self.sequence.clone()}
        schedules.applied = {self._name: self.sequence.clone()}
        try:
            self._run_until(to, inclusive=True)
            self._find()
        except UserError:
            self.module, schedules.applied = module, applied
            raise
        finally:
            schedules.given = {}
        self.sequence = self._ctx.schedules.applied[self._name]
        super().__init__(self._find(), self._target(), self.sequence)
        self.enter(to)
        self._begin()

    def save(self, path: str | Path) -> None:
        """Write the schedule as a file that `--schedule` takes."""
        write_whole(Path(path), str(self))

    def __str__(self) -> str:
        return schedules_text(self._ctx, {self._name: self.sequence})

    def _run_until(self, name: str, *, inclusive: bool) -> None:
        self.module = self._program.clone()
        passes = list(passes_for(self.module, "accel", None))
        names = [each.name for each in passes]
        if name in names:
            passes = passes[: names.index(name) + int(inclusive)]
        elif name == FIRST:
            passes = []
        run_passes(self._ctx, self.module, passes)

    def _find(self) -> func.FuncOp:
        found = {kernel.sym_name.data: kernel for kernel in kernels(self.module)}
        if self._name not in found:
            raise UserError(f"the program has no kernel @{self._name}", notes=[note_of_missing(self._name, found)])
        return found[self._name]

    def _target(self) -> Any:
        target = machine_of(self.module)
        on_machine = target is not None and device_of(self._find()) == target.sym_name.data
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
    check: bool = False,
    show: bool = False,
) -> KernelSchedule:
    """
    The schedule, yet empty, of one kernel of a model, or of a file of IR at graph or tensor level.

    The program is compiled up to where kernels are cut into tiles. Raises UserError for an unknown kernel.
    """
    from penstock.runtime.compiler import attach_machine

    program = load_input(model)
    if machine is not None:
        attach_machine(program.module, machine)
    return KernelSchedule(program.module, program.ctx, kernel, check=check, show=show)
