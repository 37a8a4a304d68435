# SPDX-License-Identifier: Apache-2.0
"""
What a schedule knows while it is applied: the operations of the kernel that each handle stands for.

A handle is consumed by the op that replaces what it stands for. As in MLIR, a handle is invalid, too, once an
operation that it stands for has been erased, alone or with one around it. Using an invalid handle is an error.
See https://mlir.llvm.org/docs/Dialects/Transform/#handle-invalidation
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UserError, render_location
from penstock.dialects.machine import TargetOp
from penstock.dialects.registry import Registry
from penstock.passes.analysis.intrinsics import Match
from penstock.passes.analysis.loop_dependences import aliased_arguments
from penstock.passes.schedule.ordering.accesses import CommandInfo
from penstock.passes.schedule.scope_offsets import Kept, kept_beside
from penstock.passes.schedule.sections import changes

if TYPE_CHECKING:
    from penstock.passes.schedule.tiled_ops import TiledOps

Payload = tuple[Operation, ...]
"""The operations that a handle stands for."""
Result = Payload | int
"""What a primitive returns for a handle; for a parameter its number."""
Primitive = Callable[["TransformState", Any], Sequence[Result]]
"""From the state and the op to what each result of the op stands for."""

PRIMITIVES: Registry[Primitive] = Registry()
"""
How each op of a schedule is applied: a function of the state and the op that returns what its results stand for.

It checks whether it is legal before it changes anything, and raises UserError where it is not.
"""

Op = TypeVar("Op", bound=Operation)


def of_kind(op: Operation, kind: type[Op]) -> Op:
    """An operation that a handle stands for; raises UserError if it is of another kind than is meant."""
    if not isinstance(op, kind):
        raise UserError(f"the handle stands for {op.name}, where {kind.name} is meant")
    return op


class TransformState:
    """The handles of a schedule that is being applied to `kernel`."""

    def __init__(self, kernel: func.FuncOp, target: TargetOp | None):
        self.kernel = kernel
        self.target = target
        """The machine that the kernel runs on; None for the host."""
        self.tiled: TiledOps | None = None
        """The ops that are tiled together, if the deciding pass has looked at them already."""
        self.commands: Sequence[CommandInfo] | None = None
        """The commands of the kernel, if the deciding pass has looked at them already; until something is applied."""
        self.matches: Mapping[GenericOp, Match] = {}
        """The intrinsics that ops are, if the deciding pass has proved it already; until something is applied."""
        self._kept: Kept | None = None
        self._aliased: Collection[SSAValue] | None = None
        self._payloads: dict[SSAValue, Payload] = {}
        self._parameters: dict[SSAValue, int] = {}
        self._invalid: dict[SSAValue, Operation] = {}
        """Handles that must not be used any more, and the op of the schedule that made them so."""
        self.turns: dict[tuple[scf.ForOp, ...], SSAValue] = {}
        """The numbers of the iterations of nests, by which the slots of their rings take turns."""

    @property
    def kept(self) -> Kept:
        """The bytes of scopes that callers of the kernel hold while it runs."""
        if self._kept is None:
            module = self.kernel.parent_op()
            found = kept_beside(module) if isinstance(module, ModuleOp) else {}
            self._kept = found.get(self.kernel.sym_name.data, {})
        return self._kept

    @kept.setter
    def kept(self, kept: Kept) -> None:
        self._kept = kept

    @property
    def aliased(self) -> Collection[SSAValue]:
        """The arguments of the kernel with which it is handed another one on the same buffer."""
        if self._aliased is None:
            self._aliased = aliased_arguments(self.kernel)
        return self._aliased

    def bind(self, handle: SSAValue, payload: Payload) -> None:
        """Let a handle stand for operations."""
        self._payloads[handle] = payload

    def payloads(self) -> Iterator[tuple[SSAValue, Payload]]:
        """The valid handles and what they stand for, in the order in which they were made."""
        yield from self._payloads.items()

    def only(self, value: SSAValue) -> Operation | None:
        """The operation that a valid handle stands for alone; None for other values."""
        payload = self._payloads.get(value, ())
        return payload[0] if len(payload) == 1 else None

    def forget(self, values: Iterable[SSAValue]) -> None:
        """Let values of ops that are taken away stand for nothing."""
        for value in values:
            self._payloads.pop(value, None)
            self._parameters.pop(value, None)

    def resume(self) -> None:
        """Go on after other passes: the handles whose operations are in the kernel still are valid."""
        self.forget(self._detached())
        self.tiled = self.commands = self._kept = self._aliased = None
        self.matches = {}
        self.turns.clear()

    def payload(self, handle: SSAValue) -> Payload:
        """The operations that a handle stands for; raises UserError for an invalid handle."""
        if (consumer := self._invalid.get(handle)) is not None:
            name = f"%{handle.name_hint}" if handle.name_hint else "this handle"
            place = render_location(consumer.location)
            raise UserError(
                f"{name} is used after {consumer.name} has replaced what it stood for",
                notes=[f"that is at {place}"] * bool(place) + ["use the handles that it returns, or match again"],
            )
        if handle not in self._payloads:
            raise UserError(
                "this handle is of an earlier section, whose operations are not there any more", notes=["match again"]
            )
        return self._payloads[handle]

    def one(self, handle: SSAValue, kind: type[Op] = Operation) -> Op:
        """The one operation that a handle stands for; raises UserError for several, none, or one of another kind."""
        payload = self.payload(handle)
        if len(payload) != 1:
            raise UserError(
                f"one operation is meant, and the handle stands for {len(payload) or 'none'}",
                notes=["transform.split_handle makes a handle for each"] if payload else [],
            )
        return of_kind(payload[0], kind)

    def parameter(self, value: SSAValue) -> int:
        """The number of a parameter; raises UserError for what is none in this section."""
        if value in self._parameters:
            return self._parameters[value]
        name = f"%{value.name_hint}" if value.name_hint else "this value"
        if value in self._payloads or value in self._invalid:
            raise UserError(
                f"{name} stands for operations, and a number is meant",
                notes=['transform.param.constant and transform.tune.knob<"NAME"> return numbers'],
            )
        raise UserError(f"{name} is a parameter of an earlier section", notes=["say it in this section, too"])

    def apply(self, op: Operation) -> None:
        """
        Apply one op of the schedule.

        Raises UserError, at the op, where that is not legal; the kernel is then as it was.
        """
        primitive = PRIMITIVES.find(type(op))
        try:
            if primitive is None:
                raise UserError(f"{op.name} is no op that a schedule of a kernel may use")
            results = primitive(self, op)
        except UserError as error:
            place = render_location(op.location)
            if not place:
                raise
            notes = [f"it is about what is at {error.loc}"] if error.loc else []
            raise UserError(error.message, loc=place, notes=[*notes, *error.notes], status=error.status) from None
        finally:
            self.commands, self.matches = None, {}
        if changes(op):
            self._invalidate(op)
        for value, result in zip(op.results, results, strict=True):
            if isinstance(result, int):
                self._parameters[value] = result
            else:
                self._payloads[value] = result

    def replace(self, old: Operation, new: Operation) -> None:
        """Let the handles of an operation stand for the one that has taken its place."""
        for handle, payload in self._payloads.items():
            if old in payload:
                self._payloads[handle] = tuple(new if op is old else op for op in payload)

    def result(self, value: SSAValue) -> Result:
        """What a value of the schedule stands for: a number for a parameter."""
        return self._parameters[value] if value in self._parameters else self.payload(value)

    @contextmanager
    def undone_on_error(self) -> Generator[None]:
        """Put the kernel back as it was, and let handles stand for the same operations, if there is a UserError."""
        kernel, before, ops = self.kernel, self.kernel.body.clone(), list(self.kernel.walk())
        attributes, payloads, invalid = dict(kernel.attributes), dict(self._payloads), dict(self._invalid)
        try:
            yield
        except UserError:
            kernel.detach_region(0)
            kernel.add_region(before)
            kernel.attributes.clear()
            kernel.attributes.update(attributes)
            copies = dict(zip(ops, kernel.walk(), strict=True))
            self._payloads = {
                handle: tuple(copies.get(each, each) for each in payload) for handle, payload in payloads.items()
            }
            self._invalid = invalid
            self.turns.clear()
            raise

    def consume(self, handle: SSAValue, consumer: Operation) -> None:
        """Make a handle invalid."""
        self._payloads.pop(handle, None)
        self._invalid[handle] = consumer

    def _invalidate(self, by: Operation) -> None:
        for handle in self._detached():
            self.consume(handle, by)

    def _detached(self) -> list[SSAValue]:
        """The handles of operations of which some are not in the kernel any more."""
        known: dict[Operation | None, bool] = {self.kernel: True, None: False}

        def is_inside(op: Operation) -> bool:
            if op not in known:
                around = op.parent_op()
                known[op] = known[around] if around in known else around is not None and is_inside(around)
            return known[op]

        return [handle for handle, payload in self._payloads.items() if not all(map(is_inside, payload))]
