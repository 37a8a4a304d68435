# SPDX-License-Identifier: Apache-2.0
"""Random programs of the loop level: a nest of loops around copies, structured ops, loads and stores on integers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SIZE = 12
"""Elements of each dim of a buffer."""
BUFFERS = 3


@dataclass
class _Loop:
    name: str
    lower: int
    step: int
    trips: int

    @property
    def last(self) -> int:
        return self.lower + (self.trips - 1) * self.step


class _Writer:
    def __init__(self, random: Random, element: str):
        self.random = random
        self.element = element
        self.before: list[str] = []
        """What is before the nest."""
        self.lines: list[str] = []
        self.count = 0
        self.constants: set[int] = set()

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def constant(self, number: int) -> str:
        self.constants.add(number)
        return f"%c{number}" if number >= 0 else f"%cm{-number}"

    def index(self, loops: list[_Loop], room: int) -> str:
        """An index from 0 to `room`, both included, whatever the counters are."""
        random = self.random
        for _ in range(20):
            terms = [(loop, random.choice((1, 1, 1, 2, -1))) for loop in loops if random.random() < 0.5]
            least = sum(c * (loop.lower if c > 0 else loop.last) for loop, c in terms)
            largest = sum(c * (loop.last if c > 0 else loop.lower) for loop, c in terms)
            if largest - least > room:
                continue
            base = random.randint(-least, room - largest)
            return self.sum(terms, base, room)
        return self.constant(random.randint(0, room))

    def sum(self, terms: list[tuple[_Loop, int]], base: int, room: int) -> str:
        total = self.constant(base)
        for loop, coefficient in terms:
            product = f"%{loop.name}"
            if coefficient != 1:
                factor, product = self.constant(coefficient), self.fresh()
                self.lines.append(f"{product} = arith.muli %{loop.name}, {factor} : index")
            if total == "%c0":
                total = product
                continue
            added = self.fresh()
            self.lines.append(f"{added} = arith.addi {total}, {product} : index")
            total = added
        if terms and self.random.random() < 0.2:
            # As the last tile of a dim does that the size does not divide.
            bound, least = self.constant(self.random.randint(0, room)), self.fresh()
            self.lines.append(f"{least} = arith.minsi {total}, {bound} : index")
            total = least
        return total

    def view(self, buffer: str, loops: list[_Loop], box: tuple[int, int]) -> tuple[str, str]:
        """A subview of a buffer, and its type."""
        at = [self.index(loops, SIZE - size) for size in box]
        result = self.fresh()
        type = f"memref<{box[0]}x{box[1]}x{self.element}, strided<[{SIZE}, 1], offset: ?>>"
        self.lines.append(
            f"{result} = memref.subview {buffer}[{', '.join(at)}] [{box[0]}, {box[1]}] [1, 1] : {self.whole} to {type}"
        )
        return result, type

    @property
    def whole(self) -> str:
        return f"memref<{SIZE}x{SIZE}x{self.element}>"

    def two_buffers(self) -> tuple[str, str]:
        one, other = self.random.sample(range(BUFFERS), 2)
        return f"%x{one}", f"%x{other}"

    def op(self, name: str) -> str:
        return name + ("f" if self.element.startswith("f") else "i")

    # statements

    def statement(self, loops: list[_Loop]) -> None:
        self.random.choice((self.generic, self.generic, self.stencil, self.copy, self.staged, self.scalar))(loops)

    def generic(self, loops: list[_Loop]) -> None:
        random = self.random
        source, dest = self.two_buffers()
        box = random.choice(((1, 1), (1, 1), (1, 3), (2, 2), (3, 1)))
        transposed = random.random() < 0.3
        ins, ins_type = self.view(source, loops, (box[1], box[0]) if transposed else box)
        out, out_type = self.view(dest, loops, (box[0], 1) if (reduced := random.random() < 0.3) else box)
        kinds = '"parallel", "reduction"' if reduced else '"parallel", "parallel"'
        maps = (
            "affine_map<(d0, d1) -> (d1, d0)>" if transposed else "affine_map<(d0, d1) -> (d0, d1)>",
            "affine_map<(d0, d1) -> (d0, 0)>" if reduced else "affine_map<(d0, d1) -> (d0, d1)>",
        )
        combine = random.choice(("add", "add", "add", "mul", "sub", "none"))
        if combine == "none" and reduced:
            combine = "add"
        body = "linalg.yield %a" if combine == "none" else f"%s = arith.{self.op(combine)} %a, %b"
        self.emit_generic(maps, kinds, ins, ins_type, out, out_type, body, combine != "none")

    def stencil(self, loops: list[_Loop]) -> None:
        source, dest = self.two_buffers()
        ins, ins_type = self.view(source, loops, (1, 4))
        out, out_type = self.view(dest, loops, (1, 2))
        maps = "affine_map<(d0, d1) -> (0, d0 + d1)>", "affine_map<(d0, d1) -> (0, d0)>"
        body = f"%s = arith.{self.op('add')} %a, %b"
        # The window has 3 elements; its extent is that of an operand which is not read.
        window = self.fresh()
        self.lines.append(f"{window} = mem.buffer at 8192 : memref<3x{self.element}>")
        e = self.element
        self.lines += [
            f"linalg.generic {{indexing_maps = [{maps[0]}, affine_map<(d0, d1) -> (d1)>, {maps[1]}], "
            f'iterator_types = ["parallel", "reduction"]}} ins({ins}, {window} : {ins_type}, memref<3x{e}>) '
            f"outs({out} : {out_type}) {{",
            f"^bb0(%a: {e}, %w: {e}, %b: {e}):",
            f"{body} : {e}",
            f"linalg.yield %s : {e}",
            "}",
        ]

    def emit_generic(
        self,
        maps: tuple[str, str],
        kinds: str,
        ins: str,
        ins_type: str,
        out: str,
        out_type: str,
        body: str,
        computes: bool,
    ) -> None:
        e = self.element
        self.lines += [
            f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{kinds}]}} "
            f"ins({ins} : {ins_type}) outs({out} : {out_type}) {{",
            f"^bb0(%a: {e}, %b: {e}):",
            f"{body} : {e}",
            *([f"linalg.yield %s : {e}"] if computes else []),
            "}",
        ]

    def copy(self, loops: list[_Loop]) -> None:
        source, dest = self.two_buffers()
        box = self.random.choice(((1, 1), (2, 2), (1, 4)))
        ins, ins_type = self.view(source, loops, box)
        at = [self.index(loops, SIZE - size) for size in box]
        self.lines.append(f"mem.copy {ins} to {dest}[{', '.join(at)}] : {ins_type} to {self.whole}")

    def staged(self, loops: list[_Loop]) -> None:
        """A copy by way of a buffer of its own, with what is out of bounds on either side."""
        source, dest = self.two_buffers()
        tile, type = self.fresh(), f"memref<2x2x{self.element}>"
        shift = self.constant(self.random.choice((-1, 1)))
        moved: list[str] = []
        for _ in range(2):
            moved.append(self.fresh())
            self.lines.append(f"{moved[-1]} = arith.addi {self.index(loops, SIZE - 2)}, {shift} : index")
        at = [self.index(loops, SIZE - 2) for _ in range(2)]
        sides = [f"{source}[{', '.join(moved)}]", f"{dest}[{', '.join(at)}]"]
        if clipped := self.random.random() < 0.5:
            sides = [f"{source}[{', '.join(at)}]", f"{dest}[{', '.join(moved)}]"]
        padding = "" if clipped else " else %zero"
        kept = self.random.choice(("inside", "before", "ring"))
        if kept == "ring":
            ring, number = self.fresh(), self.index(loops, 9)
            self.before.append(f"{ring} = mem.ring 2 at 8320 : !mem.ring<{type}>")
            self.lines.append(f"{tile} = mem.slot {ring}[{number}] : !mem.ring<{type}>")
        else:
            (self.lines if kept == "inside" else self.before).append(f"{tile} = mem.buffer at 8256 : {type}")
        self.lines += [
            f"mem.copy {sides[0]} to {tile}{padding} : {self.whole} to {type}",
            f"mem.copy {tile} to {sides[1]} : {type} to {self.whole}",
        ]

    def scalar(self, loops: list[_Loop]) -> None:
        source, dest = self.random.choice(range(BUFFERS)), self.random.choice(range(BUFFERS))
        at = [self.index(loops, SIZE - 1) for _ in range(4)]
        loaded, known, result = self.fresh(), self.fresh(), self.fresh()
        self.lines += [
            f"{loaded} = memref.load %x{source}[{at[0]}, {at[1]}] : {self.whole}",
            f"{known} = memref.load %x{dest}[{at[2]}, {at[3]}] : {self.whole}",
            f"{result} = arith.{self.op(self.random.choice(('add', 'sub')))} {loaded}, {known} : {self.element}",
            f"memref.store {result}, %x{dest}[{at[2]}, {at[3]}] : {self.whole}",
        ]

    # loops

    def nest(self, depth: int) -> None:
        random = self.random
        loops: list[_Loop] = []
        for number in range(depth):
            loop = _Loop("ijkl"[number], random.choice((0, 0, 1)), random.choice((1, 1, 2)), random.randint(1, 4))
            end = loop.lower + loop.trips * loop.step - random.randrange(loop.step)
            bounds = self.constant(loop.lower), self.constant(end), self.constant(loop.step)
            self.lines.append(f"scf.for %{loop.name} = {bounds[0]} to {bounds[1]} step {bounds[2]} {{")
            loops.append(loop)
            if number < depth - 1 and random.random() < 0.15:
                self.statement(loops)
        for _ in range(random.choice((1, 1, 2, 3))):
            self.statement(loops)
        self.lines += ["}"] * depth


def loop_program(seed: int, element: str = "i32") -> str:
    """A module with a random nest of 2 to 4 loops on 3 buffers, which are arguments before and after."""
    random = Random(seed)
    writer = _Writer(random, element)
    writer.nest(random.choice((2, 2, 3, 3, 4)))
    whole = writer.whole
    names = [f"%x{number}" for number in range(BUFFERS)]
    arguments = [f'%in{n}: {whole} {{graph.name = "in{n}"}}' for n in range(BUFFERS)]
    arguments += [f'%out{n}: {whole} {{graph.output = "out{n}"}}' for n in range(BUFFERS)]
    zero = "0.0" if element.startswith("f") else "0"
    lines = [
        f"func.func @main({', '.join(arguments)}) {{",
        f"%zero = arith.constant {zero} : {element}",
        *(f"{writer.constant(number)} = arith.constant {number} : index" for number in sorted(writer.constants | {0})),
        *(f"{name} = mem.buffer at {n * 2048} : {whole}" for n, name in enumerate(names)),
        *(f"mem.copy %in{n} to {name} : {whole} to {whole}" for n, name in enumerate(names)),
        *writer.before,
        *writer.lines,
        *(f"mem.copy {name} to %out{n} : {whole} to {whole}" for n, name in enumerate(names)),
        "func.return",
        "}",
    ]
    return "\n".join(lines)
