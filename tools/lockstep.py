# SPDX-License-Identifier: Apache-2.0
"""
Lockstep: run a program before and after every pass on the same inputs, and name the first pass that broke it.

A pass breaks a program if it changes a value; if the program cannot run any more, as when it reads bytes of a scope
that hold something else; if what it leaves cannot be proved safe (see `runtime.proofs`: the plan of the memory, and the
hazards of an accelerator); or if its commands compute something else in another order that their tokens allow. All of
it is looked at after each pass, so that a later pass cannot hide a fault, and a later check is not blamed for it.

The default inputs are small integers, stored as floats, so that sums of them are exact in any order and every pass
must keep the outputs bit for bit. Where values are not integers (trained weights, inputs with fractions), two kinds
of passes may change the rounding: those that declare `reassociates = True`, and those that run at graph level, whose
operators do not say in which order they sum. A pass that declares `narrows_to = "f16"` stores values in a narrower
type; where that type holds every value that the program computes, the outputs stay bit for bit. Elsewhere outputs are
held to the bounds of `rounding`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_bits import stored
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import ParsedText
from penstock.runtime.interpreter import Listener, Order, run_module
from penstock.runtime.levels import level_of
from penstock.runtime.pass_manager import Progress, run_passes
from penstock.runtime.proofs import prove
from penstock.runtime.signature import signature_of
from penstock.runtime.tensor_specs import Signature, TensorSpec
from penstock.runtime.weights import weight_uses
from penstock.tools.localize import first_difference
from penstock.tools.rounding import (
    NARROW_TYPES,
    exact_in,
    is_integral,
    rounding_bound,
    squared_narrowings,
    summed_terms,
)
from penstock.tools.run_by import RunBy, calls_libraries

Array = NDArray[Any]

INTERLEAVINGS: tuple[Order, ...] = ("program", "asap", "alap", 1)
"""The orders in which the commands of an accelerator happen, unless others are asked for."""


@dataclass(frozen=True)
class Comparison:
    """What a pass did to the program."""

    pass_name: str
    """The pass, as the pipeline has it."""
    verdict: str
    """
    `equal`, `rounding` (within the bound of a pass that may round), `changed`, or `broken`: what the pass left cannot
    run, or is not safe.
    """
    largest_error: float = 0.0
    """The largest difference of an element before and after it."""
    bound: float = 0.0
    """What rounding may change."""
    where: str = ""
    """The output and the element with the largest error."""
    output: int | None = None
    """The number of that output."""
    operation: str | None = None
    """The place of the first operation whose value changed or that is at fault, as far as it can be told."""
    fault: UserError | None = None
    """Why the program is broken."""

    def __str__(self) -> str:
        match self.verdict:
            case "equal":
                return f"{self.pass_name}: equal, bit for bit"
            case "rounding":
                return f"{self.pass_name}: rounding only, {self.largest_error:.3g} (bound {self.bound:.3g})"
            case "broken":
                return f"{self.pass_name}: broken, {self.fault.message if self.fault else ''}"
            case _:
                return f"{self.pass_name}: changed {self.where} by {self.largest_error:.6g}"


@dataclass
class Report:
    """All comparisons so far, in the order of the passes; the last is the faulty one if there is one."""

    comparisons: list[Comparison] = field(default_factory=list[Comparison])
    """One for each pass that ran."""

    @property
    def culprit(self) -> Comparison | None:
        """The first pass that broke the program, or None."""
        return next((found for found in self.comparisons if found.verdict in ("changed", "broken")), None)

    @property
    def kept(self) -> tuple[str, ...]:
        """The passes that kept every value, rounding aside."""
        return tuple(found.pass_name for found in self.comparisons if found.verdict in ("equal", "rounding"))

    def __str__(self) -> str:
        return "\n".join(map(str, self.comparisons))


@dataclass(frozen=True)
class AsGiven(ModulePass):
    """Stands for whatever made a program of its source."""

    name = "as given"
    reassociates: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Change nothing."""


class ProgramBroken(UserError):
    """Raised at the first pass that broke the program; carries the report up to there."""

    def __init__(self, report: Report, culprit: Comparison):
        notes = [f"allowed was {culprit.bound:.3g}"] if culprit.bound else []
        subject = f'the pass "{culprit.pass_name}"'
        if culprit.pass_name == AsGiven.name:
            subject = "what made the program of its source"
        fault, loc = culprit.fault, None
        if fault is not None:
            message = f"{subject} broke the program: {fault.message}"
            loc, notes = fault.loc, [*notes, *fault.notes]
        else:
            message = f"{subject} changed a value: {culprit.where}, the largest error is {culprit.largest_error:.6g}"
            if culprit.operation is not None:
                notes.append(f"the first operation with another value is {culprit.operation}")
        super().__init__(message, loc=loc, notes=[*notes, *_kept_note(report)])
        self.report = report


def _kept_note(report: Report) -> list[str]:
    return [f"every value was kept by {', '.join(report.kept)}"] if report.kept else []


@dataclass
class Lockstep:
    """The observer that runs the program around every pass; raises ProgramBroken."""

    ctx: PenstockContext
    inputs: Sequence[Array]
    interleavings: Sequence[Order] = INTERLEAVINGS
    """The orders in which commands of an accelerator happen; all must give the same outputs."""
    report: Report = field(default_factory=Report)
    _expected: list[Array] | None = None
    _names: tuple[str, ...] = ()
    _terms: float = 0.0
    _narrowings: float = 0.0
    _before: ModuleOp | None = None
    _before_ctx: PenstockContext | None = None
    _running: str | None = None

    def compare_with(self, source: ModuleOp, ctx: PenstockContext, module: ModuleOp) -> None:
        """
        Compare a program as it is given with the one that it was made from, which has weights of its own.

        Raises ProgramBroken where it computes something else, UserError where it takes or gives other tensors.
        """
        wanted, found = signature_of(source), signature_of(module)
        if (wanted.inputs, wanted.outputs) != (found.inputs, found.outputs):
            notes = [f"the source: {wanted.describe()}", f"the program: {found.describe()}"]
            raise UserError("the program has other inputs or outputs than its source", notes=notes)
        prove(module)
        self._before, self._before_ctx = source, ctx
        self._terms = max(summed_terms(source), summed_terms(module))
        self._names = tuple(spec.name for spec in wanted.outputs)
        self._narrowings = squared_narrowings(module)
        self._expected = self._run(source)
        self.report.comparisons.append(self._compared(AsGiven(), module, self._expected))
        if (culprit := self.report.culprit) is not None:
            raise ProgramBroken(self.report, culprit)

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._terms = max(self._terms, summed_terms(module))
        if self._expected is None:
            self._names = tuple(spec.name for spec in signature_of(module).outputs)
            prove(module)
            self._expected = self._run(module)
            self._try_orders(module, self._expected)
        self._before, self._before_ctx = module.clone(), self.ctx
        self._running = module_pass.name

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        assert self._expected is not None
        self._running = None
        self._narrowings = max(self._narrowings, squared_narrowings(module))
        if self._is_unchanged(module) and not isinstance(module_pass, RunBy):
            comparison = Comparison(module_pass.name, "equal")
        else:
            comparison = self._compared(module_pass, module, self._expected)
        self.report.comparisons.append(comparison)
        if self.report.culprit is not None:
            raise ProgramBroken(self.report, comparison)

    def run(
        self,
        module: ModuleOp,
        passes: Sequence[ModulePass],
        *,
        parsed: ParsedText | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Run `passes` on `module` in place under this observer; its report says how far they came, come what may."""
        try:
            run_passes(self.ctx, module, passes, observers=[self], progress=progress, parsed=parsed)
        except UserError as error:
            raise self.explained(error) from error

    def explained(self, error: UserError) -> UserError:
        """A fault that a pass raised, with that pass and those before it that kept every value."""
        if isinstance(error, ProgramBroken) or self._running is None:
            return error
        notes = [*error.notes, f'the pass "{self._running}" refuses the program', *_kept_note(self.report)]
        return UserError(error.message, loc=error.loc, notes=notes, status=error.status)

    def _is_unchanged(self, module: ModuleOp) -> bool:
        """Whether the pass left the text as it was; above it, passes may have written weights."""
        level = level_of(module)
        return (
            level in ("loop", "accel") and self._before is not None and module.is_structurally_equivalent(self._before)
        )

    def _compared(self, module_pass: ModulePass, module: ModuleOp, expected: list[Array]) -> Comparison:
        try:
            if isinstance(module_pass, RunBy):
                ordered = run_module(module, self.inputs, self._weights(module), ordered=True)
                found = module_pass.outputs(module, self.inputs, self._weights(module))
                return self._compare(module_pass, module, ordered, found)
            actual = self._run(module)
            comparison = self._locate(self._compare(module_pass, module, expected, actual), module)
            if comparison.verdict != "changed":
                prove(module)
                self._try_orders(module, actual)
        except UserError as error:
            return Comparison(module_pass.name, "broken", math.inf, operation=error.loc, fault=error)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:  # IR that should not have verified
            fault = UserError(f"the interpreter cannot run it, {type(error).__name__}: {error}")
            return Comparison(module_pass.name, "broken", math.inf, fault=fault)
        self._expected = actual
        return comparison

    def _locate(self, comparison: Comparison, module: ModuleOp) -> Comparison:
        if comparison.verdict != "changed" or self._before is None:
            return comparison
        bound = self._bound if comparison.bound else None
        try:
            number = comparison.output
            output = None if number is None or self._expected is None else self._expected[number]
            place = first_difference(self._before, module, self._listen, output, bound)
        except UserError:  # the values of a broken program need not be computable one by one
            place = None
        return replace(comparison, operation=place)

    def _try_orders(self, module: ModuleOp, outputs: Sequence[Array]) -> None:
        """Raise UserError where the commands of a program give other outputs than `outputs` in another order."""
        if level_of(module) != "accel":
            return
        for order in self.interleavings:
            if order == "program":
                continue
            others = self._run(module, order)
            if any(stored(a).tobytes() != stored(b).tobytes() for a, b in zip(outputs, others, strict=True)):
                raise UserError(
                    f'the interleavings "program" and "{order}" give different outputs',
                    notes=["a token is missing: the result depends on which unit is faster"],
                )

    def _run(self, module: ModuleOp, order: Order = "program") -> list[Array]:
        # Sums of integers are exact in any order; others are taken in the order that the IR says.
        ordered = not self._is_exact(module, ())
        return run_module(module, self.inputs, self._weights(module), ordered=ordered, interleaving=order)

    def _listen(self, module: ModuleOp, listener: Listener) -> object:
        return run_module(module, self.inputs, self._weights(module), ordered=True, listener=listener)

    def _weights(self, module: ModuleOp) -> WeightStore:
        ctx = self._before_ctx if module is self._before else None
        return (ctx or self.ctx).weights

    def _weight_arrays(self, module: ModuleOp) -> Iterator[Array]:
        weights = self._weights(module)
        return (weights[name] for name, _, _ in weight_uses(module) if name in weights)

    def _compare(
        self, module_pass: ModulePass, module: ModuleOp, expected: list[Array], actual: list[Array]
    ) -> Comparison:
        name = module_pass.name
        if len(expected) != len(actual):
            return Comparison(
                name, "changed", math.inf, where=f"the number of outputs, {len(expected)} to {len(actual)}"
            )
        worst: Comparison | None = None
        allowed_rounding = self._may_round(module_pass, module, expected)
        for number, (output, before, after) in enumerate(zip(self._names, expected, actual, strict=True)):
            bound = self._bound(before) if allowed_rounding else 0.0
            found = replace(compare_arrays(name, output, before, after, bound), output=number)
            if found.verdict == "changed":
                return found
            if worst is None or found.largest_error >= worst.largest_error:
                worst = found
        return worst or Comparison(name, "equal")

    def _may_round(self, module_pass: ModulePass, module: ModuleOp, expected: Sequence[Array]) -> bool:
        if isinstance(module_pass, RunBy):
            return calls_libraries(module)
        narrow: str | None = getattr(module_pass, "narrows_to", None)
        if narrow is not None:
            return not self._fits(np.dtype(NARROW_TYPES[narrow]))
        may_reassociate = getattr(module_pass, "reassociates", False) or level_of(module) == "graph"
        return may_reassociate and not self._is_exact(module, expected)

    def _fits(self, dtype: np.dtype[Any]) -> bool:
        """Whether `dtype` holds every float that goes into the program before the pass, or that it computes."""
        assert self._before is not None
        weights = self._weight_arrays(self._before)
        found = [all(exact_in(array, dtype) for array in (*self.inputs, *weights))]

        def listen(op: Operation, results: Sequence[Any], _: Sequence[Any]) -> None:
            found[0] = found[0] and all(exact_in(np.asarray(each), dtype) for each in results)

        if found[0]:
            self._listen(self._before, listen)
        return found[0]

    def _bound(self, values: Array) -> float:
        return rounding_bound(values, self._terms, self._narrowings)

    def _is_exact(self, module: ModuleOp, outputs: Sequence[Array]) -> bool:
        """Whether everything that goes in and comes out is integers, which rounding does not explain away."""
        weights = self._weight_arrays(module)
        return all(is_integral(array) for array in (*self.inputs, *outputs, *weights))


def lockstep(
    module: ModuleOp,
    ctx: PenstockContext,
    passes: Sequence[ModulePass],
    inputs: Sequence[Array] | None = None,
    *,
    seed: int = 0,
    parsed: ParsedText | None = None,
    interleavings: Sequence[Order] = INTERLEAVINGS,
) -> Report:
    """
    Run `passes` on `module` in place, comparing the program's outputs around each of them.

    Without `inputs`, small integers are drawn with `seed`. At accel level each run is repeated in every order of
    `interleavings`, and must give the same. The report ends at the first pass that broke the program. Raises UserError
    for what a pass refuses, and for a program that is broken before any pass.
    """
    chosen = default_inputs(signature_of(module), seed=seed) if inputs is None else list(inputs)
    watch = Lockstep(ctx, chosen, interleavings)
    try:
        watch.run(module, passes, parsed=parsed)
    except ProgramBroken:
        pass
    return watch.report


def default_inputs(signature: Signature, *, seed: int = 0, real: bool = False) -> list[Array]:
    """
    Inputs drawn with `seed`: integers from -4 to 4 in every type, or, if `real`, normal floats.

    Raises UserError for an input of a size that only a run knows.
    """
    for spec in signature.inputs:
        if not spec.is_static:
            message = f'no values are drawn for the input "{spec.name}", {spec.named_shape}: only a run knows its size'
            raise UserError(message, notes=["bind its dimensions: --dim NAME=SIZE"])
    rng = np.random.default_rng(seed)
    return [_draw(rng, spec, real) for spec in signature.inputs]


def _draw(rng: np.random.Generator, spec: TensorSpec, real: bool) -> Array:
    if spec.dtype.kind == "b":
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    if spec.dtype.kind == "u":
        return rng.integers(0, 9, spec.shape).astype(spec.dtype)
    if real and spec.dtype.kind in "fV":
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    return rng.integers(-4, 5, spec.shape).astype(spec.dtype)


def compare_arrays(pass_name: str, output: str, before: Array, after: Array, bound: float) -> Comparison:
    """What became of one output of a pass, whose largest error may be `bound`."""
    before, after = stored(before), stored(after)
    if before.dtype.kind in "iu" and after.dtype.kind in "iu" and before.itemsize == after.itemsize:
        after = after.view(before.dtype)  # below graph level integers are signless
    if before.shape != after.shape or before.dtype != after.dtype:
        change = f'the type of "{output}", {before.shape} {before.dtype} to {after.shape} {after.dtype}'
        return Comparison(pass_name, "changed", math.inf, where=change)
    if before.tobytes() == after.tobytes():
        return Comparison(pass_name, "equal")
    wide = np.float64 if before.dtype.kind in "fV" else np.int64
    left, right = before.astype(wide), after.astype(wide)
    with np.errstate(invalid="ignore"):
        errors = np.abs(left - right).astype(np.float64)
    # NaN on both sides agrees; NaN on one side is as wrong as can be. Zeros of either sign are one number.
    errors = np.where(np.isnan(left) & np.isnan(right) | (left == right), 0.0, errors)
    errors = np.where(np.isnan(errors), np.inf, errors)
    worst = np.unravel_index(int(errors.argmax()), errors.shape)
    largest = float(errors[worst])
    index = ", ".join(str(int(i)) for i in worst)
    where = f'"{output}"[{index}] from {before[worst]} to {after[worst]}'
    if largest == 0.0:
        return Comparison(pass_name, "equal")
    verdict = "rounding" if largest <= bound else "changed"
    return Comparison(pass_name, verdict, largest, bound, where)
