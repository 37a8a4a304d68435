"""
The inner loop of the planner `exact`, in Python: the reference that the kernel in C follows step by step.

Depth first, bottom up. A state is a set of pieces that are not placed, and for each of them the lowest place that
what is placed leaves to it. The *floor* of a section is the lowest of these places among its pieces. Where
minimalloc (Moffitt, ASPLOS 2023) branches on which buffer of all to place next, in canonical order, this search
(ours) branches on **what lies at the floor of one section**: the section with the lowest floor, and among several
the one that the run's rule names. Either one of the pieces that may start there starts there, or nothing does, and
then the floor rises (a *lift*) and the slack of the section is used up. The ways are disjoint, so that nothing is
met twice; offsets never decrease along a path, so that the pieces below any floor are all placed; and since bytes
are wasted only by a decision to waste them, a section with no slack left has as many ways as it has pieces that fit.

Why a lift may skip places: if there is a plan at all, there is one with the least sum of offsets, and in it
everything rests on something that lies just below it, or on the bottom, and fits in no hole further down. The
search looks for that plan and for no other; among pieces alike, for the one with the first of them lowest.
"""

from __future__ import annotations

from penstock.passes.planning.instance import Numbers
from penstock.passes.planning.search.state import FAR, Fit, Rule, Start, Verdict, snap

INFERENCE, FLOORS, HOLES, HATLESS, PARTS, LIFTS, TWINS, MEMORY = (1 << bit for bit in range(8))

_LOW, _TOP, _FLOOR, _PLACED, _PINNED = range(5)
_WORD = (1 << 64) - 1


class _Frame:
    """A section that is being filled, in a part of the time axis."""

    __slots__ = ("begin", "choices", "end", "key", "lonely", "mark", "next", "section")

    def __init__(self, begin: int, end: int, section: int, choices: list[int], mark: int, key: tuple[int, int]):
        self.begin, self.end, self.section, self.choices, self.mark, self.key = begin, end, section, choices, mark, key
        self.next = 0
        self.lonely = False


class PythonKernel:
    """One part of a problem at one height; `low` holds the places once the verdict is FOUND."""

    def __init__(self, start: Start, table_size: int):
        part = start.part
        self._start = start
        self._bits = start.bits
        self._size: list[int] = part.size.tolist()
        self._align: list[int] = part.align.tolist()
        self._shift: list[int] = part.shift.tolist()
        self._tie: list[int] = part.tie.tolist()
        self._twin: list[int] = part.twin.tolist()
        self._single = [other == index for index, other in enumerate(self._tie)]
        self._sections: list[list[int]] = [part.sections[index].tolist() for index in range(len(part.sections))]
        self._members: list[list[int]] = [part.members[index].tolist() for index in range(len(part.members))]
        self._near: list[list[int]] = [part.near[index].tolist() for index in range(len(part.near))]
        self._keys: list[list[tuple[int, int]]] = [[(a, b) for a, b in each] for each in start.keys.tolist()]
        self._ceiling: list[int] = start.ceiling.tolist()
        self._hull_end: list[int] = start.hull_end.tolist()
        self._mask = table_size - 1
        self._table: dict[int, tuple[int, int]] = {}
        self.steps = self.nodes = self.fails = self.known = self.lifted = 0

    @property
    def low(self) -> list[int]:
        """[pieces] The lowest place of each piece, where it lies if it is placed."""
        return self._low

    def restart(self, rank: Numbers, rule: Rule, fit: Fit) -> None:
        """Begin anew, with another order among the pieces and other rules."""
        start, count = self._start, len(self._size)
        self._rule = rule
        self._fit = fit
        self._rank: list[int] = rank.tolist()
        self._low: list[int] = start.low.tolist()
        self._top: list[int] = start.low.tolist()
        self._floor: list[int] = start.floor.tolist()
        self._total: list[int] = start.total.tolist()
        self._left: list[int] = start.left.tolist()
        self._weight = [1] * len(start.left)
        self._placed = [False] * count
        self._pinned = [False] * count
        self._sums: list[list[int]] = start.sums.tolist()
        self._trail: list[tuple[int, int, int]] = []
        self._frames: list[_Frame] = []
        self._split, self._at, self._until = True, 0, len(self._members)

    def search(self, step_limit: int, node_limit: int) -> Verdict:
        """Go on until there is a verdict, or until as many steps or nodes were taken in all."""
        while True:
            if self._split:
                while self._at < self._until and not self._left[self._at]:
                    self._at += 1
                if self._at < self._until:
                    if self.steps >= step_limit or self.nodes >= node_limit:
                        return Verdict.OPEN
                    self._split = False
                    if not self._enter(self._at, self._part_end(self._at, self._until)) and not self._frames:
                        return Verdict.IMPOSSIBLE
                    continue
                if not self._frames:
                    return Verdict.FOUND
                # the part of the deepest frame is done: go on behind it
                self._at = self._frames.pop().end
                self._until = self._frames[-1].end if self._frames else len(self._members)
            elif self._next_way():
                self._at, self._until = self._frames[-1].begin, self._frames[-1].end
                self._split = True
            else:
                frame = self._frames.pop()
                self.fails += 1
                if self._bits & MEMORY:
                    self._table[frame.key[0] & self._mask] = frame.key
                if not self._frames:
                    return Verdict.IMPOSSIBLE

    def _part_end(self, begin: int, end: int) -> int:
        """Where the part ends, from `begin`, which something is left in, that nothing left crosses."""
        if not self._bits & PARTS:
            return end
        reach = begin + 1
        section = begin
        while section < reach:
            for piece in self._members[section]:
                if not self._placed[piece] and self._hull_end[piece] > reach:
                    reach = self._hull_end[piece]
            section += 1
        return reach

    def _enter(self, begin: int, end: int) -> bool:
        """Enter a part of the time axis. False where it is known to fail."""
        self.nodes += 1
        self.steps += 1 + end - begin
        key = (0, 0)
        if self._bits & MEMORY:
            first = sum(self._sums[section][0] for section in range(begin, end)) & _WORD
            second = sum(self._sums[section][1] for section in range(begin, end)) & _WORD
            key = (first, second)
            if self._table.get(first & self._mask, (0, 0)) == key:
                self.known += 1
                return False
        section = self._choose(begin, end)
        self._frames.append(_Frame(begin, end, section, self._collect(section), len(self._trail), key))
        return True

    def _choose(self, begin: int, end: int) -> int:
        best = (FAR, 0)
        chosen = -1
        for section in range(begin, end):
            floor = self._floor[section]
            if not self._left[section] or floor > best[0]:
                continue
            key = (floor, self._urgency(section))
            if chosen < 0 or key < best:
                best, chosen = key, section
        return chosen

    def _urgency(self, section: int) -> int:
        slack = self._ceiling[section] - self._floor[section] - self._total[section]
        match self._rule:
            case Rule.LEAST_SLACK:
                return slack
            case Rule.WEIGHTED_SLACK:
                return (max(slack, 0) + 1) * 4096 // self._weight[section]
            case Rule.EARLIEST:
                return section
            case Rule.LATEST:
                return -section

    def _collect(self, section: int) -> list[int]:
        """The pieces that may start at the floor of a section, those that fit best first; of those alike the first."""
        floor = self._floor[section]
        choices: list[int] = []
        seen: set[int] = set()
        for piece in self._members[section]:
            if self._placed[piece] or self._low[piece] != floor:
                continue
            if self._bits & TWINS and self._twin[piece] >= 0:
                if self._twin[piece] in seen:
                    continue
                seen.add(self._twin[piece])
            choices.append(piece)
        return sorted(choices, key=lambda piece: (self._misfit(piece), self._rank[piece]))

    def _misfit(self, piece: int) -> int:
        """The sides at which a piece leaves a pit where it lies lowest, and those at which its top leaves a step."""
        low = self._low[piece]
        top = low + self._size[piece]
        steps = 0
        for beside in (self._sections[piece][0] - 1, self._sections[piece][-1] + 1):
            if self._fit != Fit.NONE and 0 <= beside < len(self._left) and self._left[beside]:
                steps += self._floor[beside] <= low
                steps += self._fit == Fit.TOPS and self._floor[beside] != top
        return steps

    def _next_way(self) -> bool:
        """The next way at the deepest frame. False where there is none."""
        frame = self._frames[-1]
        self._undo(frame.mark)
        while not frame.lonely and frame.next <= len(frame.choices):
            frame.next += 1
            if frame.next > len(frame.choices):
                if self._lift(frame.section):
                    return True
            else:
                fits, lonely = self._place(frame.choices[frame.next - 1])
                frame.lonely = lonely and bool(self._bits & HATLESS)
                if fits:
                    return True
            self._undo(frame.mark)
        return False

    def _place(self, piece: int) -> tuple[bool, bool]:
        """Put a piece where it lies lowest: whether the rest still fits, and whether nothing left ever meets it."""
        top = self._low[piece] + self._size[piece]
        dirty: dict[int, None] = {}
        lonely = self._single[piece]
        self._add_piece(piece, 1)
        self._placed[piece] = True
        self._trail.append((_PLACED, piece, 0))
        other = self._tie[piece]
        while other != piece:
            if not self._placed[other] and not self._pinned[other]:
                self._trail.append((_PINNED, other, 0))
                self._pinned[other] = True
                self._add_key(other, 3, 1)
            other = self._tie[other]
        for section in self._sections[piece]:
            self._total[section] -= self._size[piece]
            self._left[section] -= 1
            self._set_floor(section, top)
            dirty[section] = None
        self.steps += len(self._near[piece])
        for other in self._near[piece]:
            if self._placed[other]:
                continue
            lonely = False
            if self._bits & HOLES and self._top[other] < top:
                rest = self._snap(other, top)
                if rest == FAR:
                    return False, lonely
                self._trail.append((_TOP, other, self._top[other]))
                self._add_key(other, 1, rest - self._top[other])
                self._top[other] = rest
            if self._low[other] < top and not self._raise(other, top, dirty):
                return False, lonely
        return self._settle(dirty), lonely

    def _lift(self, section: int) -> bool:
        """Nothing of a section starts at its floor: whether the rest still fits."""
        floor = self._floor[section]
        slack = self._ceiling[section] - floor - self._total[section]
        if self._bits & INFERENCE and slack <= 0:
            return False
        members = self._members[section]
        own = set(members)
        level = FAR
        for piece in members:
            if self._placed[piece]:
                continue
            if self._low[piece] > floor:
                rest = self._low[piece]
            elif self._pinned[piece]:
                return False
            else:
                rest = self._next_rest(piece, floor, own) if self._bits & LIFTS else self._snap(piece, floor + 1)
            level = min(level, rest)
        if level == FAR or (self._bits & INFERENCE and level - floor > slack):
            return False
        dirty: dict[int, None] = {section: None}
        self._set_floor(section, level)
        for piece in members:
            if not self._placed[piece] and self._low[piece] < level and not self._raise(piece, level, dirty):
                return False
        if not self._settle(dirty):
            return False
        if self._bits & HOLES and any(self._fits_hole(piece, level) for piece in members):
            return False
        self.lifted += 1
        return True

    def _fits_hole(self, piece: int, level: int) -> bool:
        """Whether a piece would fit below everything left, where nothing but the bottom or what is placed holds it."""
        hole = self._top[piece] + self._size[piece]
        if self._placed[piece] or not self._single[piece] or hole > level or self._top[piece] >= self._low[piece]:
            return False
        return all(self._floor[section] >= hole for section in self._sections[piece])

    def _next_rest(self, piece: int, floor: int, own: set[int]) -> int:
        """The lowest place above the floor where a piece, or one that it is tied to, may rest on one that is left."""
        best = FAR
        tied = piece
        while True:
            self.steps += len(self._near[tied])
            for other in self._near[tied]:
                if self._placed[other] or (tied == piece and other in own):
                    continue
                end = self._low[other] + self._size[other] - self._shift[tied] + self._shift[piece]
                # it may come to lie higher than now, where it holds what is tied to this one by a distance
                best = min(best, max(end, floor + 1))
            tied = self._tie[tied]
            if tied == piece:
                return best if best == FAR else self._snap(piece, best)

    def _snap(self, piece: int, value: int) -> int:
        return snap(self._start.ranges[piece], self._align[piece], self._shift[piece], value)

    def _raise(self, piece: int, value: int, dirty: dict[int, None]) -> bool:
        """Nothing of a piece, nor of those tied to it, lies lower any more."""
        value = self._snap(piece, value)
        if value == FAR or not self._raise_one(piece, value, dirty):
            return False
        other = self._tie[piece]
        while other != piece:
            theirs = value - self._shift[piece] + self._shift[other]
            if self._low[other] < theirs and not self._raise_one(other, theirs, dirty):
                return False
            other = self._tie[other]
        return True

    def _raise_one(self, piece: int, value: int, dirty: dict[int, None]) -> bool:
        if self._pinned[piece] or self._placed[piece]:
            return False
        old = self._low[piece]
        self._trail.append((_LOW, piece, old))
        self._add_key(piece, 0, value - old)
        self._low[piece] = value
        for section in self._sections[piece]:
            if self._floor[section] == old:
                dirty[section] = None
        return True

    def _settle(self, dirty: dict[int, None]) -> bool:
        """New floors for the sections that may have one, and whether what is left still fits above them."""
        for section in dirty:
            if not self._left[section]:
                continue
            if self._bits & FLOORS:
                self._set_floor(section, min(self._low[p] for p in self._members[section] if not self._placed[p]))
            if self._bits & INFERENCE and self._floor[section] + self._total[section] > self._ceiling[section]:
                self._weight[section] += 1
                return False
        return True

    def _set_floor(self, section: int, floor: int) -> None:
        if self._floor[section] != floor:
            self._trail.append((_FLOOR, section, self._floor[section]))
            self._floor[section] = floor

    def _add_key(self, piece: int, kind: int, factor: int) -> None:
        first, second = self._keys[kind][piece]
        sums = self._sums[self._sections[piece][0]]
        sums[0] = (sums[0] + first * factor) & _WORD
        sums[1] = (sums[1] + second * factor) & _WORD

    def _add_piece(self, piece: int, sign: int) -> None:
        """Take all that a piece means for the key of a state away (1), or put it back (-1)."""
        self._add_key(piece, 2, -sign)
        self._add_key(piece, 0, -sign * self._low[piece])
        if self._bits & HOLES:
            self._add_key(piece, 1, -sign * self._top[piece])
        if self._pinned[piece]:
            self._add_key(piece, 3, -sign)

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            change, index, old = self._trail.pop()
            if change == _LOW:
                self._add_key(index, 0, old - self._low[index])
                self._low[index] = old
            elif change == _TOP:
                self._add_key(index, 1, old - self._top[index])
                self._top[index] = old
            elif change == _FLOOR:
                self._floor[index] = old
            elif change == _PINNED:
                self._add_key(index, 3, -1)
                self._pinned[index] = False
            else:
                self._placed[index] = False
                self._add_piece(index, -1)
                for section in self._sections[index]:
                    self._total[section] += self._size[index]
                    self._left[section] += 1
