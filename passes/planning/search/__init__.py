"""
The search of the planner `exact`: does everything fit below a given height?

```python
instance = compact(problem)                      # penstock.passes.planning.instance
search = Search(instance, height, seed=0)        # height in bytes
while search.verdict is Verdict.OPEN:
    search.advance(10_000_000)                   # steps; in C a tenth of a second or less
if search.verdict is Verdict.FOUND:
    plan = search.plan                           # a Plan with every buffer's offset, of a peak <= height
# Verdict.IMPOSSIBLE: proved that nothing fits below `height`
```
"""

from __future__ import annotations

from penstock.passes.planning.instance import Instance, Part
from penstock.passes.planning.problem import Plan
from penstock.passes.planning.search.c_kernel import CKernel, available
from penstock.passes.planning.search.orders import runs
from penstock.passes.planning.search.python_kernel import PythonKernel
from penstock.passes.planning.search.state import Fit, Rule, Switches, Verdict, start

__all__ = ["Rule", "Search", "Switches", "Verdict"]


class _PartSearch:
    """The search of one part."""

    def __init__(self, part: Part, height: int, switches: Switches, seed: int, use_c: bool):
        self.part = part
        self.verdict = Verdict.OPEN
        self.steps = 0
        self.runs = 0
        self._switches = switches
        self.kernel: CKernel | PythonKernel | None = None
        begin = start(part, height, switches)
        if begin.hopeless:
            self.verdict = Verdict.IMPOSSIBLE
            return
        table_size = 1 << min(18, len(part.size).bit_length() + 8)
        self.kernel = (CKernel if use_c else PythonKernel)(begin, table_size)
        self._runs = runs(part, seed, switches.restarts, switches.orders)
        self._limit = 0

    def advance(self, steps: int) -> None:
        """Go on until a verdict, the end of a run, or as many steps in all."""
        assert self.kernel is not None
        if self.kernel.nodes >= self._limit:
            run = next(self._runs)
            slack = run.rule is Rule.WEIGHTED_SLACK and not self._switches.weights
            rule = Rule.LEAST_SLACK if slack else run.rule
            self.kernel.restart(run.rank, rule, run.fit if self._switches.fits else Fit.NONE)
            self._limit = self.kernel.nodes + run.nodes
            self.runs += 1
        self.verdict = self.kernel.search(steps, self._limit)
        self.steps = self.kernel.steps

    def places(self) -> dict[str, int]:
        """The byte offset of every buffer of the part, by id."""
        assert self.kernel is not None
        part = self.part
        rows = zip(part.buffers, self.kernel.low, part.shift.tolist(), strict=True)
        return {buffer.id: (low - shift) * part.unit for buffer, low, shift in rows}


class Search:
    """
    Whether a problem has a plan of no more than `height` bytes.

    A step is a look at one section or at one pair of pieces that meet. The same problem, height, switches and seed
    take the same steps in C and in Python, however they are cut into slices. `known`, a plan that may be higher,
    saves looking at parts in which it is not.
    """

    def __init__(
        self,
        instance: Instance,
        height: int,
        switches: Switches | None = None,
        seed: int = 0,
        known: Plan | None = None,
        use_c: bool | None = None,
    ):
        self._instance = instance
        self._offsets = dict(instance.empty)
        use_c = available() if use_c is None else use_c
        self._parts: list[_PartSearch] = []
        self.verdict = Verdict.OPEN
        self.height = height
        self._current: _PartSearch | None = None
        for part in instance.parts:
            if known is not None and all(known.offsets[b.id] + b.size <= height for b in part.buffers):
                self._offsets.update((b.id, known.offsets[b.id]) for b in part.buffers)
            else:
                self._parts.append(_PartSearch(part, height, switches or Switches(), seed, use_c))
        self._open = [part for part in self._parts if part.verdict is Verdict.OPEN]
        if any(offset > height for offset in instance.empty.values()) or len(self._open) < len(self._parts):
            self.verdict = Verdict.IMPOSSIBLE
        elif not self._open:
            self.verdict = Verdict.FOUND

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return sum(part.steps for part in self._parts)

    @property
    def nodes(self) -> int:
        """Nodes of the search tree visited so far."""
        return sum(part.kernel.nodes for part in self._parts if part.kernel is not None)

    @property
    def runs(self) -> int:
        """Runs begun so far."""
        return sum(part.runs for part in self._parts)

    @property
    def plan(self) -> Plan:
        """The plan that was found."""
        if self.verdict is not Verdict.FOUND:
            raise ValueError("nothing was found")
        offsets = dict(self._offsets)
        for part in self._parts:
            offsets.update(part.places())
        return Plan({buffer.id: offsets[buffer.id] for buffer in self._instance.problem.buffers})

    def advance(self, steps: int) -> Verdict:
        """Go on for about as many steps more, unless there is a verdict before."""
        left = steps
        while self.verdict is Verdict.OPEN and left > 0:
            # the parts take turns, a run each
            part = self._current or min(self._open, key=lambda part: part.steps)
            before = part.steps
            part.advance(before + left)
            left -= part.steps - before
            self._current = part if left <= 0 else None
            if part.verdict is Verdict.IMPOSSIBLE:
                self.verdict = Verdict.IMPOSSIBLE
            elif part.verdict is Verdict.FOUND:
                self._current = None
                self._open.remove(part)
                if not self._open:
                    self.verdict = Verdict.FOUND
        return self.verdict
