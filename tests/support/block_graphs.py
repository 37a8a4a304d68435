# SPDX-License-Identifier: Apache-2.0
"""
Random functions of several blocks, with values: reducible or not, nested loops, switches, several exits.

What a branch does is decided by the numbers of the input, in the order in which branches come; once these are spent,
every branch goes the shortest way out, so each run ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

BITS = 24
"""Branches of a run that the input decides."""


class BlockGraph:
    """One function: `@main(%bits, %x, %y)`, whose second argument it reads and whose third is what it writes."""

    def __init__(self, random: Random, blocks: int):
        self.random = random
        self.count = blocks
        self.exits = {blocks - 1, *(random.randrange(blocks) for _ in range(random.randint(0, 2)))} - {0}
        self.targets = [self._targets(number) for number in range(blocks)]
        self._let_all_leave()
        self.reachable = self._reachable()
        self.dominators = self._dominators()
        self.args: list[list[str]] = [self._types() if number else [] for number in range(blocks)]
        self.names: dict[int, list[tuple[str, str]]] = {}
        self.fresh = 0

    def _types(self) -> list[str]:
        return [self.random.choice(("i32", "f32", "index", "i1")) for _ in range(self.random.randint(0, 3))]

    def _targets(self, number: int) -> list[int]:
        if number in self.exits:
            return []
        near = [target for target in range(max(1, number - 3), min(self.count, number + 4))]
        count = self.random.choice((1, 2, 2, 2, 2, 3, 4))
        return [self.random.choice((number + 1, *near, self.random.randrange(1, self.count))) for _ in range(count)]

    def _let_all_leave(self) -> None:
        """Give a way out to what has none, and remember how far it is."""
        while True:
            self.distance = dict.fromkeys(self.exits, 0)
            for _ in range(self.count):
                for number, targets in enumerate(self.targets):
                    known = [self.distance[target] + 1 for target in targets if target in self.distance]
                    if known:
                        self.distance[number] = min(known)
            lost = [number for number in range(self.count) if number not in self.distance]
            if not lost:
                return
            self.targets[lost[-1]].append(self.random.choice(sorted(self.distance.keys() - {0})))

    def _reachable(self) -> list[int]:
        found, pending = {0}, [0]
        while pending:
            new = {target for target in self.targets[pending.pop()] if target not in found}
            found |= new
            pending += sorted(new)
        return sorted(found)

    def _dominators(self) -> list[set[int]]:
        everything = set(range(self.count))
        found = [{0}, *(set(everything) for _ in range(self.count - 1))]
        changed = True
        while changed:
            changed = False
            for number in range(1, self.count):
                sources = [found[source] for source in self.reachable if number in self.targets[source]]
                new = {number, *(everything.intersection(*sources) if sources else everything - {0})}
                changed |= new != found[number]
                found[number] = new
        return found

    # text

    def _name(self) -> str:
        self.fresh += 1
        return f"%v{self.fresh}"

    def text(self) -> str:
        """The module."""
        arguments = f'%bits: memref<{BITS}xi32>, %x: memref<4xi32>, %y: memref<4xi32> {{graph.output = "y"}}'
        lines = [f"func.func @main({arguments}) {{"]
        order = [0, *self.random.sample(self.reachable[1:], len(self.reachable) - 1)]
        for number in self.reachable:
            kept = [(f"%b{number}_{n}", type) for n, type in enumerate(self.args[number])]
            self.names[number] = kept
            for kind in ("i32", "f32", "index", "i1"):
                for _ in range(self.random.randint(0, 2)):
                    kept.append((self._name(), kind))
        bodies = {number: self._body(number) for number in self.reachable}
        for number in order:
            if number:
                arguments = ", ".join(f"%b{number}_{n}: {type}" for n, type in enumerate(self.args[number]))
                lines.append(f"^b{number}{f'({arguments})' if arguments else ''}:")
            lines += bodies[number]
        return "\n".join([*lines, "}", ""])

    def _known(self, number: int, type: str, before: int | None = None) -> str:
        """A value of a type that a block sees, in it only of the first `before` of its own."""
        own = self.names[number][:before]
        seen = [*own, *(pair for other in sorted(self.dominators[number] - {number}) for pair in self.names[other])]
        fitting = [name for name, kind in seen if kind == type]
        otherwise = {"i32": "%n", "f32": "%f", "index": "%c1", "i1": "%t"}
        return self.random.choice(fitting[-6:]) if fitting else otherwise[type]

    def _body(self, number: int) -> list[str]:
        lines: list[str] = []
        if number == 0:
            lines += [f"  %c{n} = arith.constant {n} : index" for n in range(4)]
            lines += ["  %zero = arith.constant 0 : i32", "  %one = arith.constant 1 : i32"]
            lines += [f"  %last = arith.constant {BITS - 1} : i32", "  %many = arith.constant 31 : i32"]
            lines += ["  %f = arith.constant 1.5 : f32", "  %t = arith.constant true"]
            lines += ["  %n = memref.load %x[%c0] : memref<4xi32>"]
            lines += [f"  memref.store %zero, %y[%c{n}] : memref<4xi32>" for n in range(4)]
        for place, (name, type) in enumerate(self.names[number][len(self.args[number]) :], len(self.args[number])):
            one, other = self._known(number, type, place), self._known(number, type, place)
            op = {"i32": "arith.muli", "f32": "arith.subf", "index": "arith.addi", "i1": "arith.xori"}[type]
            if type == "i1" and self.random.random() < 0.5:
                left, right = self._known(number, "i32", place), self._known(number, "i32", place)
                lines.append(f"  {name} = arith.cmpi slt, {left}, {right} : i32")
            elif type == "i32" and self.random.random() < 0.5:
                lines.append(f"  {name} = arith.addi {one}, {self._known(number, 'i32', place)} : i32")
            else:
                lines.append(f"  {name} = {op} {one}, {other} : {type}")
        lines += self._traced(number)
        lines.append(self._terminator(number, lines))
        return lines

    def _traced(self, number: int) -> list[str]:
        """Fold what the block sees into the trace, `%y[1]`."""
        lines: list[str] = []
        old, new, id_ = self._name(), self._name(), self._name()
        lines.append(f"  {old} = memref.load %y[%c1] : memref<4xi32>")
        lines.append(f"  {id_} = arith.constant {number + 1} : i32")
        lines.append(f"  {new} = arith.muli {old}, %many : i32")
        for type in ("i32", "f32", "index", "i1"):
            seen, part = self._known(number, type), self._name()
            cast = {"f32": "arith.bitcast", "index": "arith.index_cast", "i1": "arith.extui"}.get(type)
            if cast is not None:
                lines.append(f"  {part} = {cast} {seen} : {type} to i32")
                seen = part
            total = self._name()
            lines.append(f"  {total} = arith.addi {new}, {seen} : i32")
            new = total
        total = self._name()
        lines.append(f"  {total} = arith.xori {new}, {id_} : i32")
        lines.append(f"  memref.store {total}, %y[%c1] : memref<4xi32>")
        return lines

    def _terminator(self, number: int, lines: list[str]) -> str:
        targets = self.targets[number]
        if not targets:
            lines.append(f"  memref.store {self._known(number, 'i32')}, %y[%c2] : memref<4xi32>")
            return "  func.return"
        if len(targets) == 1:
            return f"  cf.br {self._successor(number, targets[0])}"
        shortest = min(range(len(targets)), key=lambda place: self.distance[targets[place]])
        flag = self._decision(shortest, lines)
        if len(targets) == 2:
            left = self._name()
            lines.append(f"  {left} = arith.cmpi eq, {flag}, %zero : i32")
            first, second = (self._successor(number, target) for target in targets)
            return f"  cf.cond_br {left}, {first}, {second}"
        others = [(place, self._successor(number, target)) for place, target in enumerate(targets[:-1])]
        cases = "".join(f",\n    {place}: {successor}" for place, successor in others)
        return f"  cf.switch {flag} : i32, [\n    default: {self._successor(number, targets[-1])}{cases}\n  ]"

    def _successor(self, number: int, target: int) -> str:
        values = [self._known(number, type) for type in self.args[target]]
        return f"^b{target}" + (f"({', '.join(values)} : {', '.join(self.args[target])})" if values else "")

    def _decision(self, otherwise: int, lines: list[str]) -> str:
        """The next number of the input, or `otherwise` once they are spent, which `%y[0]` counts."""
        count, left, at, place, bit, next_, constant, flag = (self._name() for _ in range(8))
        lines += [
            f"  {count} = memref.load %y[%c0] : memref<4xi32>",
            f"  {left} = arith.cmpi slt, {count}, %last : i32",
            f"  {at} = arith.select {left}, {count}, %last : i32",
            f"  {place} = arith.index_cast {at} : i32 to index",
            f"  {bit} = memref.load %bits[{place}] : memref<{BITS}xi32>",
            f"  {next_} = arith.addi {at}, %one : i32",
            f"  memref.store {next_}, %y[%c0] : memref<4xi32>",
            f"  {constant} = arith.constant {otherwise} : i32",
            f"  {flag} = arith.select {left}, {bit}, {constant} : i32",
        ]
        return flag


def block_graph(seed: int, most: int = 12) -> str:
    """A module with one function of several blocks."""
    random = Random(f"blocks {seed}")
    return BlockGraph(random, random.randint(2, most)).text()


def decisions(seed: int) -> Sequence[int]:
    """Numbers for the branches of a run."""
    random = Random(f"bits {seed}")
    return [random.choice((0, 0, 1, 1, 2, 3)) for _ in range(BITS)]
