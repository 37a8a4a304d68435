"""
Lockstep: run a program before and after every pass on the same inputs, and name the first pass that changed a value.

The default inputs are small integers, stored as floats, so that sums of them are exact in any order and every pass
must keep the outputs bit for bit. Where values are not integers (trained weights, inputs with fractions), two kinds
of passes may change the rounding: those that declare `reassociates = True`, and those that run at graph level, whose
operators do not say in which order they sum. Their outputs are held to the probabilistic bound of Higham and Mary, "A
New Approach to Probabilistic Rounding Error Analysis" (2019): c * sqrt(K) * eps * max|y|, with K the number of terms
summed along the whole program.

A pass that declares `narrows_to = "f16"` stores values in a narrower type. Where that type holds every value that the
program computes, the outputs stay bit for bit. Elsewhere each place that narrows rounds by half the eps of that type,
u, independently of the others: the bound is 8 * sqrt(sum of u^2 over these places) * max|y|. Later passes that may
round have it as well, as they can tip a rounding that stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_types import stored
from penstock.lowering.from_text import ParsedText
from penstock.runtime.compiler import level_of
from penstock.runtime.interpreter import Listener, Order, run_module
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.signature import Signature, TensorSpec, signature_of
from penstock.runtime.weights import weight_uses
from penstock.tools.localize import first_difference
from penstock.tools.rounding import epsilon, exact_in, squared_narrowings, summed_terms

Array = NDArray[Any]

CONFIDENCE = 16.0
"""The constant c of the bound; about ten standard deviations of the rounding of independent sums."""
NARROWING_CONFIDENCE = 8.0
"""The same for values that are stored in a narrower type; a single rounding deviates by u / sqrt(3)."""
NARROW_TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
"""What a pass may narrow to."""
MAX_EXACT = 1 << 24
"""Integers up to here, and their sums, are exact in f32."""


@dataclass(frozen=True)
class Comparison:
    """What a pass did to the outputs."""

    pass_name: str
    verdict: str
    """`equal`, `rounding` (within the bound of a pass that may round) or `changed`."""
    largest_error: float = 0.0
    bound: float = 0.0
    where: str = ""
    """The output and the element with the largest error."""
    operation: str | None = None
    """The place of the first operation whose value changed, as far as it can be told."""

    def __str__(self) -> str:
        match self.verdict:
            case "equal":
                return f"{self.pass_name}: equal, bit for bit"
            case "rounding":
                return f"{self.pass_name}: rounding only, {self.largest_error:.3g} (bound {self.bound:.3g})"
            case _:
                return f"{self.pass_name}: changed {self.where} by {self.largest_error:.6g}"


@dataclass
class Report:
    """All comparisons so far, in the order of the passes; the last is the faulty one if there is one."""

    comparisons: list[Comparison] = field(default_factory=list[Comparison])

    @property
    def culprit(self) -> Comparison | None:
        """The first pass that changed a value, or None."""
        return next((found for found in self.comparisons if found.verdict == "changed"), None)

    def __str__(self) -> str:
        return "\n".join(map(str, self.comparisons))


class ValueChanged(UserError):
    """Raised at the first pass that changed a value; carries the report up to there."""

    def __init__(self, report: Report, culprit: Comparison):
        notes = [f"allowed was {culprit.bound:.3g}"] if culprit.bound else []
        if culprit.operation is not None:
            notes.append(f"the first operation with another value is {culprit.operation}")
        super().__init__(
            f'the pass "{culprit.pass_name}" changed a value: {culprit.where},'
            f" the largest error is {culprit.largest_error:.6g}",
            notes=notes,
        )
        self.report = report


@dataclass
class Lockstep:
    """The observer that runs the program around every pass; raises ValueChanged."""

    ctx: PenstockContext
    inputs: Sequence[Array]
    schedules: Sequence[Order] = ("program",)
    """The orders in which commands of an accelerator happen; all must give the same outputs."""
    report: Report = field(default_factory=Report)
    _expected: list[Array] | None = None
    _names: tuple[str, ...] = ()
    _terms: float = 0.0
    _narrowings: float = 0.0
    _before: ModuleOp | None = None

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._terms = max(self._terms, summed_terms(module))
        if self._expected is None:
            self._names = tuple(spec.name for spec in signature_of(module).outputs)
            self._expected = self._run(module)
        self._before = module.clone()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        assert self._expected is not None
        self._narrowings = max(self._narrowings, squared_narrowings(module))
        actual = self._run(module)
        comparison = self._locate(self._compare(module_pass, module, self._expected, actual), module)
        self.report.comparisons.append(comparison)
        if comparison.verdict == "changed":
            raise ValueChanged(self.report, comparison)
        self._expected = actual

    def _locate(self, comparison: Comparison, module: ModuleOp) -> Comparison:
        # Where a pass may round otherwise, the first value with other bits need not be the faulty one.
        if comparison.verdict != "changed" or self._before is None or comparison.bound:
            return comparison
        try:
            place = first_difference(self._before, module, self._listen)
        except UserError:  # the values of a broken program need not be computable one by one
            place = None
        return replace(comparison, operation=place)

    def _run(self, module: ModuleOp) -> list[Array]:
        # Sums of integers are exact in any order; others are taken in the order that the IR says.
        ordered = not self._is_exact(module, ())
        first, *others = (
            (order, run_module(module, self.inputs, self.ctx.weights, ordered=ordered, schedule=order))
            for order in (self.schedules if level_of(module) == "accel" else ("program",))
        )
        for order, outputs in others:
            if any(stored(a).tobytes() != stored(b).tobytes() for a, b in zip(first[1], outputs, strict=True)):
                raise UserError(
                    f'the schedules "{first[0]}" and "{order}" give different outputs',
                    notes=["a token is missing: the result depends on which unit is faster"],
                )
        return first[1]

    def _listen(self, module: ModuleOp, listener: Listener) -> object:
        return run_module(module, self.inputs, self.ctx.weights, ordered=True, listener=listener)

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
        for output, before, after in zip(self._names, expected, actual, strict=True):
            found = _compare_arrays(name, output, before, after, self._bound(before) if allowed_rounding else 0.0)
            if found.verdict == "changed":
                return found
            if worst is None or found.largest_error >= worst.largest_error:
                worst = found
        return worst or Comparison(name, "equal")

    def _may_round(self, module_pass: ModulePass, module: ModuleOp, expected: Sequence[Array]) -> bool:
        narrow: str | None = getattr(module_pass, "narrows_to", None)
        if narrow is not None:
            return not self._fits(np.dtype(NARROW_TYPES[narrow]))
        may_reassociate = getattr(module_pass, "reassociates", False) or level_of(module) == "graph"
        return may_reassociate and not self._is_exact(module, expected)

    def _fits(self, dtype: np.dtype[Any]) -> bool:
        """Whether `dtype` holds every float that goes into the program before the pass, or that it computes."""
        assert self._before is not None
        weights = (self.ctx.weights[name] for name, _, _ in weight_uses(self._before) if name in self.ctx.weights)
        found = [all(exact_in(array, dtype) for array in (*self.inputs, *weights))]

        def listen(op: Operation, results: Sequence[Any]) -> None:
            found[0] = found[0] and all(exact_in(np.asarray(each), dtype) for each in results)

        if found[0]:
            self._listen(self._before, listen)
        return found[0]

    def _bound(self, values: Array) -> float:
        if values.dtype.kind not in "fV" or not values.size:
            return 0.0
        finite = np.abs(values[np.isfinite(values)].astype(np.float64))
        largest = float(finite.max()) if finite.size else 0.0
        sums = math.sqrt(self._terms) * epsilon(values.dtype)
        return math.hypot(CONFIDENCE * sums, NARROWING_CONFIDENCE * math.sqrt(self._narrowings)) * largest

    def _is_exact(self, module: ModuleOp, outputs: Sequence[Array]) -> bool:
        """Whether everything that goes in and comes out is integers, which rounding does not explain away."""
        weights = (self.ctx.weights[name] for name, _, _ in weight_uses(module) if name in self.ctx.weights)
        return all(_is_integral(array) for array in (*self.inputs, *outputs, *weights))


def lockstep(
    module: ModuleOp,
    ctx: PenstockContext,
    passes: Sequence[ModulePass],
    inputs: Sequence[Array] | None = None,
    *,
    seed: int = 0,
    parsed: ParsedText | None = None,
    schedules: Sequence[Order] = ("program",),
) -> Report:
    """
    Run `passes` on `module` in place, comparing the program's outputs around each of them.

    Without `inputs`, small integers are drawn with `seed`. At accel level each run is repeated in every order of
    `schedules`, and must give the same. The report ends at the first pass that changed a value.
    """
    chosen = default_inputs(signature_of(module), seed=seed) if inputs is None else list(inputs)
    watch = Lockstep(ctx, chosen, schedules)
    try:
        run_passes(ctx, module, passes, observers=[watch], parsed=parsed)
    except ValueChanged:
        pass
    return watch.report


def default_inputs(signature: Signature, *, seed: int = 0, real: bool = False) -> list[Array]:
    """Inputs drawn with `seed`: integers from -4 to 4 in every type, or, if `real`, normal floats."""
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


def _compare_arrays(pass_name: str, output: str, before: Array, after: Array, bound: float) -> Comparison:
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


def _is_integral(array: Array) -> bool:
    if array.dtype.kind in "biu":
        return True
    values = np.asarray(array, dtype=np.float64)
    return bool(np.all(np.isfinite(values) & (values == np.rint(values)) & (np.abs(values) < MAX_EXACT)))
