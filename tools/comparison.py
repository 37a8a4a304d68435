"""What a pass did to a program: its outputs before and after, and a report of all passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_types import stored

Array = NDArray[Any]


@dataclass(frozen=True)
class Comparison:
    """What a pass did to the program."""

    pass_name: str
    verdict: str
    """
    `equal`, `rounding` (within the bound of a pass that may round), `changed`, or `broken`: what the pass left cannot
    run, or is not safe.
    """
    largest_error: float = 0.0
    bound: float = 0.0
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
