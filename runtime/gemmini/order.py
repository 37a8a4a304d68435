# SPDX-License-Identifier: Apache-2.0
"""
Which orders of instructions Gemmini permits between two fences.

Three controllers (loads, products, stores) each take their instructions in order. Between two controllers the hardware
orders two instructions exactly if they touch a common local row and one of them writes it; what is off chip orders
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random

from penstock.runtime.gemmini.isa import Block, Command, Compute, ConfigEx, ConfigLd, Mvin, Preload

LOAD, EXECUTE, STORE = range(3)

Row = tuple[bool, int]
"""Whether it is of the accumulators, and its number."""


def draw_order(commands: Sequence[Command], dim: int, random: Random, configured: Sequence[Command] = ()) -> list[int]:
    """The numbers of `commands` in an order that is permitted; `configured` are those before the last fence."""
    waits = list(_waits(commands, dim, configured))
    queues: list[deque[int]] = [deque(), deque(), deque()]
    for number, command in enumerate(commands):
        queues[_controller(command)].append(number)
    done: set[int] = set()
    order: list[int] = []
    while any(queues):
        ready = [queue for queue in queues if queue and waits[queue[0]] <= done]
        number = random.choice(ready).popleft()
        done.add(number)
        order.append(number)
    return order


def _waits(commands: Sequence[Command], dim: int, configured: Sequence[Command]) -> Iterator[set[int]]:
    """What each command waits for, of those before it."""
    loads: dict[int, ConfigLd] = {}
    execute: ConfigEx | None = None
    preload: Preload | None = None
    writer: dict[Row, int] = {}
    readers: dict[Row, dict[int, int]] = {}
    for number, command in enumerate((*configured, *commands), -len(configured)):
        reads: list[Row] = []
        writes: list[Row] = []
        match command:
            case ConfigLd():
                loads[command.channel] = command
            case ConfigEx():
                execute = command
            case Preload():
                preload = command
            case Mvin():
                stride = loads[command.channel].block_stride if command.channel in loads else 0
                for block in range(-(-command.block.columns // dim)):
                    writes += _rows(command.block, 1, block * stride)
            case Compute():
                reads += _rows(command.a, execute.a_stride if execute else 1)
                reads += _rows(command.d, 1)
            case _:
                reads += _rows(getattr(command, "block", None), 1)
        if isinstance(command, Preload | Compute) and preload is not None:
            # The two are one product: what either touches stays touched until the second is done.
            reads += _rows(preload.b, 1)
            writes += _rows(preload.c, execute.c_stride if execute else 1)
        if number < 0:
            continue
        needed = {writer[row] for row in (*reads, *writes) if row in writer}
        needed |= {reader for row in writes for reader in readers.get(row, {}).values()}
        yield needed
        for row in writes:
            writer[row] = number
            readers.pop(row, None)
        for row in reads:
            readers.setdefault(row, {})[_controller(command)] = number


def _rows(block: Block | None, stride: int, offset: int = 0) -> list[Row]:
    if block is None:
        return []
    return [(block.accumulator, block.row + offset + each * stride) for each in range(block.rows)]


def _controller(command: Command) -> int:
    match command:
        case ConfigLd() | Mvin():
            return LOAD
        case ConfigEx() | Preload() | Compute():
            return EXECUTE
        case _:
            return STORE
