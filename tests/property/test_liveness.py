# SPDX-License-Identifier: Apache-2.0
"""
Liveness against a trace: random programs are run element by element, by a tracer of its own that knows nothing of
the analysis, and whatever was written and is read again must have been alive in between. Where control takes one
way only, nothing else may be. And a plan made from it runs under the interpreter's check of who owns each byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from programs import checked
from sampling import examples
from xdsl.dialects import arith, cf, func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerAttr, ModuleOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.context import make_context
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, SlotOp
from penstock.dialects.weights import Array
from penstock.passes.analysis.memory.liveness import Allocation, Liveness, LivePart
from penstock.runtime.interpreter import run_function
from penstock.runtime.pass_manager import read_pipeline, run_passes

SIZE = 4
"""Elements of a buffer."""
WHOLE, PART = f"memref<{SIZE}xf32>", "memref<2xf32, strided<[1], offset: ?>>"
RING = f"!mem.ring<{WHOLE}>"


# random programs


class RandomProgram:
    """Builds @main op by op; `random` decides. With `simple`, buffers are accessed whole, and there is no branch."""

    def __init__(self, random: Random, *, simple: bool = False):
        self.random = random
        self.simple = simple
        self.lines: list[str] = []
        self.names = 0
        self.written: list[set[str]] = [{"%x"}]
        """Buffers that are certainly written, by the blocks around."""
        self.buffers: list[list[str]] = [[]]
        self.rings: list[str] = []
        for number in range(5):
            self.lines.append(f"%c{number} = arith.constant {number} : index")
        for _ in range(random.randint(1, 4)):
            self.allocate()
        if not simple and random.random() < 0.4:
            self.rings.append(self.emit(f"mem.ring {random.randint(1, 2)} : {RING}"))
        self.block(random.randint(2, 6), 0, "%c0")
        for name in self.known():
            self.copy(name, "%y")
        body = "\n".join(self.lines)
        self.text = (
            f'func.func @main(%x: {WHOLE}, %n: index, %p: i1, %y: {WHOLE} {{graph.output = "y"}}) {{\n{body}\n'
            "func.return\n}\n"
        )

    def emit(self, text: str) -> str:
        self.names += 1
        self.lines.append(f"%v{self.names} = {text}")
        return f"%v{self.names}"

    def allocate(self) -> None:
        self.buffers[-1].append(self.emit(f"memref.alloc() : {WHOLE}"))

    def all_buffers(self) -> list[str]:
        return [name for names in self.buffers for name in names]

    def known(self) -> list[str]:
        written = {name for names in self.written for name in names}
        return [name for name in (*self.all_buffers(), "%x") if name in written]

    def copy(self, source: str, dest: str) -> None:
        if source != dest:
            self.lines.append(f"mem.copy {source} to {dest} : {WHOLE} to {WHOLE}")

    def block(self, count: int, depth: int, counter: str) -> None:
        self.written.append(set())
        self.buffers.append([])
        for _ in range(count):
            self.step(depth, counter)
        self.buffers.pop()
        self.written.pop()

    def step(self, depth: int, counter: str) -> None:
        choice = self.random.random()
        if choice < 0.15 and depth < 3:
            self.loop(depth)
        elif choice < 0.3 and depth < 3 and not self.simple:
            self.random.choice([self.branch, self.repeat, self.chosen])(depth, counter)
        elif choice < 0.4:
            self.allocate()
        elif choice < 0.6 and not self.simple:
            self.partial(counter)
        else:
            self.fill()

    def fill(self) -> None:
        """Write a buffer wholly, from another."""
        dest = self.random.choice(self.all_buffers())
        source = self.random.choice([name for name in self.known() if name != dest])
        through = dest
        if self.random.random() < 0.3:
            square = self.emit(
                f"memref.expand_shape {dest} [[0, 1]] output_shape [2, 2] : {WHOLE} into memref<2x2xf32>"
            )
            through = self.emit(f"memref.collapse_shape {square} [[0, 1]] : memref<2x2xf32> into {WHOLE}")
        self.copy(source, through)
        self.written[-1].add(dest)

    def partial(self, counter: str) -> None:
        """Read one element or half of a buffer, write that to another, which stays what it was otherwise."""
        dest, source = self.random.choice(self.all_buffers()), self.random.choice(self.known())
        at = self.random.choice(["0", "2", "1", self.emit(f"arith.minsi {counter}, %c2 : index")])
        if self.rings and self.random.random() < 0.4:
            slot = self.emit(f"mem.slot {self.random.choice(self.rings)}[{counter}] : {RING}")
            self.copy(source, slot)
            self.lines.append(f"mem.copy {slot} to {dest} : {WHOLE} to {WHOLE}")
            self.written[-1].add(dest)
        elif self.random.random() < 0.5:
            element = self.emit(f"memref.load {source}[%c{self.random.randint(0, 3)}] : {WHOLE}")
            index = self.random.choice([counter, "%c1"])
            bounded = self.emit(f"arith.minsi {index}, %c3 : index")
            self.lines.append(f"memref.store {element}, {dest}[{bounded}] : {WHOLE}")
        elif source != dest:
            part = self.emit(f"memref.subview {source}[{at}] [2] [1] : {WHOLE} to {PART.replace('?', self.shown(at))}")
            self.lines.append(
                f"mem.copy {part} to {dest}[{self.random.choice(['0', '2', at])}] : "
                f"{PART.replace('?', self.shown(at))} to {WHOLE}"
            )
            if self.random.random() < 0.5:
                for half in ("0", "2"):
                    self.lines.append(
                        f"mem.copy {part} to {dest}[{half}] : {PART.replace('?', self.shown(at))} to {WHOLE}"
                    )
                self.written[-1].add(dest)

    def shown(self, at: str) -> str:
        return at if at.isdigit() else "?"

    def loop(self, depth: int) -> None:
        upper = self.random.choice(["%c2", "%c3"] if self.simple else ["%n", "%c0", "%c1", "%c2", "%c4"])
        counter = f"%i{len(self.lines)}"
        self.lines.append(f"scf.for {counter} = %c0 to {upper} step %c1 {{")
        self.block(self.random.randint(1, 4), depth + 1, counter)
        self.lines.append("}")

    def branch(self, depth: int, counter: str) -> None:
        self.lines.append("scf.if %p {")
        self.block(self.random.randint(1, 3), depth + 1, counter)
        if self.random.random() < 0.5:
            self.lines.append("} else {")
            self.block(self.random.randint(1, 3), depth + 1, counter)
        self.lines.append("}")

    def repeat(self, depth: int, counter: str) -> None:
        """A while loop of as many rounds as %n."""
        at, inner = f"%w{len(self.lines)}", f"%u{len(self.lines)}"
        self.names += 1
        self.lines.append(f"%v{self.names} = scf.while ({at} = %c0) : (index) -> (index) {{")
        self.block(self.random.randint(1, 2), depth + 1, counter)
        more = self.emit(f"arith.cmpi slt, {at}, %n : index")
        self.lines += [f"scf.condition({more}) {at} : index", "} do {", f"^bb0({inner}: index):"]
        self.block(self.random.randint(1, 2), depth + 1, counter)
        self.lines += [f"scf.yield {self.emit(f'arith.addi {inner}, %c1 : index')} : index", "}"]

    def chosen(self, depth: int, counter: str) -> None:
        """A name for one of two buffers, which a loop may swap round by round; it is read, and written."""
        known = [name for name in self.known() if name != "%x"]
        if len(known) < 2:
            return self.fill()
        first, second = self.random.sample(known, 2)
        if self.random.random() < 0.5:
            name = self.emit(f"arith.select %p, {first}, {second} : {WHOLE}")
        else:
            self.names += 2
            name = f"%v{self.names}"
            a, b = f"%s{self.names}", f"%t{self.names}"
            self.lines.append(
                f"{name}, %v{self.names - 1} = scf.for %j{self.names} = %c0 to {self.random.choice(['%n', '%c2'])} "
                f"step %c1 iter_args({a} = {first}, {b} = {second}) -> ({WHOLE}, {WHOLE}) {{"
            )
            self.copy(a, b)
            self.block(1, depth + 1, counter)
            order = (b, a) if self.random.random() < 0.7 else (a, b)
            self.lines += [f"scf.yield {order[0]}, {order[1]} : {WHOLE}, {WHOLE}", "}"]
        self.copy("%x", name)
        self.copy(name, "%y")


def random_blocks(random: Random) -> str:
    """A function of several blocks that go anywhere; some take a buffer as an argument."""
    count = random.randint(2, 6)
    takes = [False, *(random.random() < 0.4 for _ in range(count - 1))]
    names = [f"%b{number}" for number in range(random.randint(1, 3))]
    lines = [f"{name} = memref.alloc() : {WHOLE}" for name in names]
    for block in range(count):
        here = [*names, f"%m{block}"] if takes[block] else names
        if block:
            lines.append(f"^bb{block}({f'%m{block}: {WHOLE}' if takes[block] else ''}):")
        for _ in range(random.randint(0, 4)):
            source, dest = random.choice([*here, "%x"]), random.choice([*here, "%y"])
            part = random.random() < 0.3
            lines.append(
                f"mem.copy %h to {dest}[{random.choice([0, 2])}] : memref<2xf32> to {WHOLE}"
                if part
                else f"mem.copy {source} to {dest} : {WHOLE} to {WHOLE}"
            )

        def target(number: int | None = None, here: list[str] = here) -> str:
            number = number or random.randint(1, count - 1)
            return f"^bb{number}({random.choice(here)} : {WHOLE})" if takes[number] else f"^bb{number}"

        # Every block can be reached: from the one before it.
        following = target(block + 1) if block + 1 < count else target()
        choice = random.random()
        if block + 1 == count and choice < 0.3:
            lines.append("func.return")
        elif choice < 0.4:
            lines.append(f"cf.br {following}")
        elif choice < 0.8:
            lines.append(f"cf.cond_br %p, {following}, {target()}")
        else:
            lines.append(f"cf.switch %k : i32, [\ndefault: {target()},\n3: {following}\n]")
    heads = f"%x: {WHOLE}, %y: {WHOLE}, %h: memref<2xf32>, %p: i1, %k: i32"
    return f"func.func @main({heads}) {{\n" + "\n".join(lines) + "\n}\n"


# the tracer


@dataclass(frozen=True)
class Elements:
    """Some elements of an instance of a buffer; `place` stands for its bytes, which all its instances share."""

    place: Operation | None
    numbers: tuple[int, ...]


@dataclass
class Ring:
    slots: list[Elements]


@dataclass
class Event:
    """One execution of an op."""

    op: Operation
    reads: set[tuple[Operation, int]] = field(default_factory=set[tuple[Operation, int]])
    writes: set[tuple[Operation, int]] = field(default_factory=set[tuple[Operation, int]])
    made: Operation | None = None


class OutOfFuel(Exception):
    pass


class Tracer:
    """Runs a function; what it does not know of, conditions first of all, is drawn at random."""

    def __init__(self, function: func.FuncOp, random: Random):
        self.random = random
        self.fuel = 150
        self.events: list[Event] = []
        self.values: dict[SSAValue, Any] = {}
        for arg in function.body.blocks[0].args:
            self.values[arg] = random.randint(0, 3) if arg.type.name == "index" else Elements(None, tuple(range(SIZE)))
        try:
            self.region(function.body.blocks[0])
        except OutOfFuel:
            pass

    def region(self, block: Block) -> tuple[Operation, list[Any]]:
        """Run from a block to a terminator that leaves the region; what that hands on."""
        while True:
            for op in block.ops:
                self.execute(op)
            last = block.last_op
            assert last is not None
            if not last.successors:
                return last, [self.values.get(value) for value in last.operands]
            block = self.go(last)

    def go(self, op: Operation) -> Block:
        number = self.random.randrange(len(op.successors))
        if isinstance(op, cf.BranchOp):
            handed = op.arguments
        elif isinstance(op, cf.ConditionalBranchOp):
            handed = (op.then_arguments, op.else_arguments)[number]
        else:
            assert isinstance(op, cf.SwitchOp)
            handed = (op.default_operands, *op.case_operand)[number]
        target = op.successors[number]
        found = [self.values[value] for value in handed]
        self.values.update(zip(target.args, found, strict=True))
        return target

    def execute(self, op: Operation) -> None:
        self.fuel -= 1
        if self.fuel < 0:
            raise OutOfFuel
        event = Event(op)
        self.events.append(event)
        values = self.values
        match op:
            case arith.ConstantOp():
                values[op.result] = op.value.value.data if isinstance(op.value, IntegerAttr) else None
            case arith.AddiOp():
                values[op.result] = values[op.lhs] + values[op.rhs]
            case arith.MinSIOp():
                values[op.result] = min(values[op.lhs], values[op.rhs])
            case arith.CmpiOp():
                values[op.result] = values[op.lhs] < values[op.rhs]
            case arith.SelectOp():
                values[op.result] = values[self.random.choice([op.lhs, op.rhs])]
            case memref.AllocOp() | BufferOp():
                event.made = op
                values[op.results[0]] = Elements(op, tuple(range(SIZE)))
            case RingOp():
                event.made = op
                slots = [tuple(range(n * SIZE, (n + 1) * SIZE)) for n in range(op.slot_count)]
                values[op.ring] = Ring([Elements(op, numbers) for numbers in slots])
            case SlotOp():
                ring = values[op.ring]
                values[op.memref] = ring.slots[values[op.index] % len(ring.slots)]
            case memref.ExpandShapeOp() | memref.CollapseShapeOp():
                values[op.results[0]] = values[op.operands[0]]
            case memref.SubviewOp():
                (at,) = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
                base, begin = values[op.source], values[at] if isinstance(at, SSAValue) else at
                values[op.result] = Elements(base.place, base.numbers[begin : begin + 2])
            case memref.LoadOp():
                self.touch(event.reads, values[op.memref], [values[op.indices[0]]])
            case memref.StoreOp():
                self.touch(event.writes, values[op.memref], [values[op.indices[0]]])
            case CopyOp():
                self.touch(event.reads, values[op.source])
                begin, (size,) = 0, op.box
                if op.window_side == "dest":
                    (at,) = op.mixed_dest_offsets()
                    begin = values[at] if isinstance(at, SSAValue) else at
                self.touch(event.writes, values[op.dest], range(begin, begin + size))
            case scf.ForOp():
                self.run_for(op)
            case scf.IfOp():
                taken = self.random.choice([op.true_region, op.false_region])
                if taken.blocks:
                    self.region(taken.block)
            case scf.WhileOp():
                self.run_while(op)
            case _:
                pass

    def touch(self, found: set[tuple[Operation, int]], what: Elements, numbers: Sequence[int] | None = None) -> None:
        chosen = what.numbers if numbers is None else [what.numbers[n] for n in numbers if n < len(what.numbers)]
        if what.place is not None:
            found.update((what.place, number) for number in chosen)

    def run_for(self, op: scf.ForOp) -> None:
        carried = [self.values[value] for value in op.iter_args]
        for number in range(self.values[op.lb], self.values[op.ub], self.values[op.step]):
            self.values.update(zip(op.body.block.args, [number, *carried], strict=True))
            _, carried = self.region(op.body.block)
        self.values.update(zip(op.results, carried, strict=True))

    def run_while(self, op: scf.WhileOp) -> None:
        carried = [self.values[value] for value in op.arguments]
        while True:
            self.values.update(zip(op.before_region.block.args, carried, strict=True))
            _, (more, *handed) = self.region(op.before_region.block)
            if not more:
                break
            self.values.update(zip(op.after_region.block.args, handed, strict=True))
            _, carried = self.region(op.after_region.block)
        self.values.update(zip(op.results, handed, strict=True))


Element = tuple[Operation, int]
"""An element of a buffer, or of the slots of a ring."""


def needed(events: Sequence[Event]) -> Iterator[tuple[Operation, set[Element]]]:
    """For each execution of an op the elements that it touches, or that are kept over it or made for later."""
    later: list[set[tuple[Operation, int]]] = []
    wanted: set[tuple[Operation, int]] = set()
    for event in reversed(events):
        later.append(wanted)
        wanted = {each for each in wanted if each not in event.writes and each[0] is not event.made} | event.reads
    written: set[tuple[Operation, int]] = set()
    before: set[Element] = set()
    for event, after in zip(events, reversed(later), strict=True):
        written = {each for each in written if each[0] is not event.made} | event.writes
        kept = written & after
        yield event.op, before | kept | event.reads | event.writes
        before = kept


Lives = dict[Operation, tuple[LivePart, ...]]


def found_alive(liveness: Liveness, op: Operation, buffers: Lives) -> set[Element]:
    begin, _ = liveness.span(op)
    return {
        (buffer, element)
        for buffer, parts in buffers.items()
        for (lower, upper), window in parts
        if lower <= begin < upper
        for element in elements_in(buffer, window)
    }


def elements_in(buffer: Operation, window: tuple[int, int] | None) -> range:
    if window is not None:
        return range(window[0] // 4, window[1] // 4)
    return range(SIZE * (buffer.slot_count if isinstance(buffer, RingOp) else 1))


def main_of(module: ModuleOp) -> func.FuncOp:
    (main,) = (op for op in module.ops if isinstance(op, func.FuncOp))
    return main


def lifetimes(liveness: Liveness) -> Lives:
    found: Lives = {}
    for buffer in liveness.buffers:
        assert isinstance(buffer.owner, Operation)
        found[buffer.owner] = liveness.live_parts(buffer)
    return found


def check_sound(text: str, random: Random, runs: int) -> None:
    main = main_of(checked(text))
    liveness = Liveness(main)
    buffers = lifetimes(liveness)
    for _ in range(runs):
        for op, kept in needed(Tracer(main, random).events):
            missing = kept - found_alive(liveness, op, buffers)
            names = [(each.results[0].name_hint, element) for each, element in missing]
            assert not missing, f"{names} at {op}\n{text}"


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_what_is_written_and_read_again_is_alive_in_between(seed: int) -> None:
    random = Random(seed)
    check_sound(RandomProgram(random).text, random, 4)


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_it_is_so_whichever_way_blocks_go(seed: int) -> None:
    random = Random(seed)
    check_sound(random_blocks(random), random, 4)


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_without_branches_nothing_else_is_alive(seed: int) -> None:
    random = Random(seed)
    main = main_of(checked(RandomProgram(random, simple=True).text))
    liveness = Liveness(main)
    buffers = lifetimes(liveness)
    tracer = Tracer(main, random)
    if tracer.fuel < 0:
        return
    exact: dict[Operation, set[Element]] = {}
    for op, kept in needed(tracer.events):
        exact.setdefault(op, set()).update(kept)
    used = {place for kept in exact.values() for place, _ in kept}
    for op, kept in exact.items():
        # A buffer that is not used is alive for the step at which it is made.
        alive = found_alive(liveness, op, buffers)
        assert {each for each in alive if each[0] is not op or op in used} == kept, str(op)


# a plan runs


def run(module: ModuleOp, values: tuple[Array, int, bool]) -> Array:
    result = np.zeros(SIZE, np.float32)
    run_function(module, "main", [*values, result])
    return result


def planned(text: str, pipeline: str) -> ModuleOp:
    module = checked(text)
    run_passes(make_context(), module, read_pipeline(pipeline))
    return module


def apart(text: str) -> ModuleOp:
    """All buffers at places of their own."""
    module = checked(text)
    place = 0
    for op in list(module.walk()):
        if isinstance(op, memref.AllocOp):
            buffer = BufferOp(op.memref.type, place)
            place += 64
            block = op.parent
            assert block is not None
            block.insert_op_before(buffer, op)
            op.memref.replace_all_uses_with(buffer.memref)
            op.detach()
            op.erase()
        elif isinstance(op, RingOp):
            op.properties["offset"] = IntegerAttr(place, 64)
            place += 64 * op.slot_count
    return module


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 3), st.booleans())
def test_a_plan_made_from_it_computes_the_same_and_reads_no_foreign_byte(seed: int, rounds: int, way: bool) -> None:
    text = RandomProgram(Random(seed)).text
    values = (np.arange(1, SIZE + 1, dtype=np.float32), rounds, way)
    expected = run(apart(text), values)
    shared = planned(text, 'mem-plan{planner="first-fit-by-start"},mem-verify')
    np.testing.assert_array_equal(run(shared, values), expected)


def test_the_random_programs_have_what_they_are_to_try() -> None:
    text = "".join(RandomProgram(Random(seed)).text for seed in range(40))
    for part in ("scf.while", "iter_args", "arith.select", "mem.slot", "memref.subview", "} else {", "memref.store"):
        assert part in text
    blocks = "".join(random_blocks(Random(seed)) for seed in range(40))
    assert all(part in blocks for part in ("cf.switch", "cf.cond_br", "%m1"))
    assert any(isinstance(op, Allocation) for op in checked(random_blocks(Random(0))).walk())
