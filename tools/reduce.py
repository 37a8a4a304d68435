# SPDX-License-Identifier: Apache-2.0
"""
Delta debugging: a program that a pass breaks is cut down as long as the pass breaks it in the same way.

First to the program that the faulty pass was given, and that pass alone, if it fails there, too; then, with chunks of
ever fewer operations, to fewer results, fewer operations, inputs in place of what computes them, and loops of one
iteration. Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002); mlir-reduce.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_text import module_text
from penstock.passes.value_dce import ValueDcePass
from penstock.runtime.interpreter import Order
from penstock.runtime.pass_manager import PassFault, pipeline_text
from penstock.runtime.signature import main_function, signature_of
from penstock.runtime.weights import save_weights, weight_uses
from penstock.tools.lockstep import INTERLEAVINGS, Lockstep, ProgramBroken, default_inputs
from penstock.tools.reduce_edits import EDITS, Edit, change, drop_unused_inputs, places
from penstock.tools.reproduce import write_headed
from penstock.tools.run_by import RunBy

TRIES = 2_000
"""How many candidates are run at most."""


@dataclass(frozen=True)
class Failure:
    """Which pass broke a program, and how; numbers and names of values do not matter."""

    pass_name: str
    kind: str
    is_finite: bool
    """Whether all outputs were finite before; undefined memory is not."""


@dataclass(frozen=True)
class Failing:
    """A program, and passes of which one breaks it."""

    module: ModuleOp
    passes: tuple[ModulePass, ...]
    failure: Failure
    tries: int = 0
    """How many candidates were run to get here."""


class _Watch(Lockstep):
    """Keeps the program that the last pass was given, and whether what it computes at first is finite."""

    given: ModuleOp | None = None
    is_finite: bool = True

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        is_first = self.given is None
        super().before(module_pass, module)
        self.given = self._before
        if is_first and self._expected is not None:
            self.is_finite = all(np.isfinite(each).all() for each in self._expected if each.dtype.kind in "fV")


_PARTICULARS = re.compile(r"[-\d.]+|%\w+|\"[^\"]*\"")
"""What may be other in a message of the same fault: numbers, and names of values and outputs."""


def _kind(error: ProgramBroken | PassFault) -> str:
    found: BaseException | str | None = error.__cause__
    if isinstance(error, ProgramBroken):
        culprit = error.report.culprit
        assert culprit is not None
        found = culprit.fault or culprit.verdict
    words = found.message if isinstance(found, UserError) else str(found or error)
    return f"{type(found).__name__}: {_PARTICULARS.sub('#', words.partition(chr(10))[0])}"


@dataclass
class Reducer:
    """What a candidate is run with."""

    ctx: PenstockContext
    seed: int = 0
    """What the inputs, small integers, are drawn with."""
    interleavings: Sequence[Order] = INTERLEAVINGS
    limit: int = TRIES
    tries: int = 0

    def failing(self, module: ModuleOp, passes: Sequence[ModulePass]) -> tuple[Failing, Failing] | None:
        """
        A program with passes that break it: all of them up to the faulty one, and that one on what it was given; None
        where no pass breaks it, or one refuses it, or it is invalid to begin with. The module is left as it is.
        """
        try:
            watch = _Watch(self.ctx, default_inputs(signature_of(module), seed=self.seed), self.interleavings)
        except UserError:
            return None
        try:
            watch.run(module.clone(), passes)
        except (ProgramBroken, PassFault) as error:
            if watch.given is None:
                return None
            done = passes[: len(watch.report.kept) + 1]
            failure = Failure(done[-1].name, _kind(error), watch.is_finite)
            return Failing(module, tuple(done), failure), Failing(watch.given, (done[-1],), failure)
        except UserError:
            pass
        return None

    def reduce(self, module: ModuleOp, passes: Sequence[ModulePass]) -> Failing | None:
        """The smallest program found that fails as `module` does; None if that does not fail."""
        if (found := self.failing(module, passes)) is None:
            return None
        whole, alone = found
        best = alone if self._fails(alone.module, alone) else whole
        changed = True
        while changed:
            changed = False
            for edit in EDITS:
                smaller = self._shrunk(best, edit)
                changed = changed or smaller is not best
                best = smaller
        return Failing(best.module, best.passes, best.failure, self.tries)

    def _fails(self, module: ModuleOp, best: Failing) -> bool:
        self.tries += 1
        found = self.failing(module, best.passes)
        return found is not None and found[0].failure == best.failure

    def _shrunk(self, best: Failing, edit: Edit) -> Failing:
        """`best` after as many changes of `edit` as it bears: all of them at once first, then by halves."""
        chunk = len(places(best.module, edit))
        while chunk:
            start = 0
            while start < len(places(best.module, edit)) and self.tries < self.limit:
                candidate = best.module.clone()
                # From the last to the first, so that what uses a value goes before what makes it.
                chosen = reversed(places(candidate, edit)[start : start + chunk])
                if any([change(edit, op, number) for op, number in chosen]) and self._is_kept(candidate, best):
                    best = Failing(candidate, best.passes, best.failure)
                else:
                    start += chunk
            chunk //= 2
        return best

    def _is_kept(self, candidate: ModuleOp, best: Failing) -> bool:
        try:
            ValueDcePass().apply(self.ctx, candidate)
            drop_unused_inputs(main_function(candidate))
            return self._fails(candidate, best)
        except Exception:  # an edit may leave what is no program: it is not a candidate then
            return False


def reduce_to_file(reducer: Reducer, module: ModuleOp, passes: Sequence[ModulePass], path: Path) -> str:
    """
    Reduce a program that a pass breaks, write it to `path`, its weights beside it, headed by the command that shows
    the fault; returns a line that says what came of it. Raises UserError where that cannot be written.
    """
    found = reducer.reduce(module, passes)
    if found is None:
        return "nothing is reduced: on drawn inputs no pass breaks the program"
    if any(True for _ in weight_uses(found.module)):
        save_weights(reducer.ctx.weights, found.module, path.with_suffix(".safetensors"))
    backends = [each.name for each in found.passes if isinstance(each, RunBy)]
    words = ["-p", pipeline_text([each for each in found.passes if not isinstance(each, RunBy)])]
    words += ["--backend", *backends] if backends else []
    if reducer.seed:
        words += ["--seed", str(reducer.seed)]
    if tuple(reducer.interleavings) != INTERLEAVINGS:
        words += ["--interleaving", ",".join(map(str, reducer.interleavings))]

    line = shlex.join(["penstock", "check", str(path), *words])
    text = module_text(reducer.ctx, found.module)
    write_headed(path, line, f"{found.failure.pass_name}: {found.failure.kind}", text)
    before, after = (sum(1 for _ in each.walk()) for each in (module, found.module))
    return f"reduced from {before} to {after} operations by {found.tries} tries: {line}"
