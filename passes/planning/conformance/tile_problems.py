# SPDX-License-Identifier: Apache-2.0
"""Tile problems as plain data: kernels of networks on models of machines, random ones, and the least that they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random

from penstock.dialects.cycles import Timing
from penstock.passes.planning.tile_problem import Channel, TileDim, TileOp, TileOperand, TileProblem

_LOAD = Channel("load", "bus", (16, 1), 100, 1, 16, picojoules=160.0)
_STORE = Channel("store", "bus", (16, 1), 100, 1, 16, picojoules=160.0)


@dataclass(frozen=True)
class TileMachine:
    """A unit that multiplies and adds blocks, scopes for its operands, and engines that fill and empty them."""

    scopes: Mapping[str, str]
    """Where "x", "w" (a second operand) and "y" (the result) are held."""
    capacity: Mapping[str, int]
    """Bytes."""
    block: tuple[int, int, int]
    """The extents of one application: of columns or rows, of what is summed over, and of results."""
    is_fixed: bool = False
    """Whether blocks have these extents, or at most them."""
    element_bytes: Mapping[str, int] = field(default_factory=lambda: {"x": 1, "w": 1, "y": 4})
    granule: int = 16
    load: Channel = _LOAD
    store: Channel = _STORE
    interval: int = 16


MACHINES = {
    "shared": TileMachine({"x": "spad", "w": "spad", "y": "acc"}, {"spad": 1 << 18, "acc": 1 << 16}, (16, 16, 16)),
    "fixed": TileMachine(
        {"x": "inp", "w": "wgt", "y": "acc"},
        {"inp": 1 << 15, "wgt": 1 << 18, "acc": 1 << 17},
        (1, 16, 16),
        True,
        load=Channel("load", "read", (8, 1), 10, 2, 1, picojoules=160.0),
        store=Channel("store", "write", (8, 1), 10, 2, 1, picojoules=160.0),
        interval=1,
    ),
    "small": TileMachine(
        {"x": "spm", "w": "spm", "y": "spm"},
        {"spm": 8192},
        (4, 4, 4),
        element_bytes={"x": 2, "w": 2, "y": 2},
        load=Channel("dma", "bus", (4, 1), 20, 0, 1, picojoules=160.0),
        store=Channel("dma", "bus", (4, 1), 20, 0, 1, picojoules=160.0),
        interval=4,
    ),
}
"""One scope for two operands; a scope for each, and blocks of fixed shape; one for all, and one engine both ways."""

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TileKernel:
    """A kernel before it is for a machine: its dims, and what indexes its operands."""

    extents: tuple[int, ...]
    parallel: tuple[bool, ...]
    operands: Mapping[str, tuple[Rows, tuple[int, ...]]]
    """The rows of coefficients and the shape, padding included, of "x", perhaps "w", and "y"."""
    blocked: tuple[int | None, int | None, int | None]
    """The dims that an application takes a block of, as in `TileMachine.block`."""
    whole: tuple[int, ...] = ()
    pad: tuple[int, int] = (0, 0)
    """Of x, before and after, in the dims that a window moves over."""


def _unit(count: int) -> list[tuple[int, ...]]:
    return [tuple(int(dim == own) for dim in range(count)) for own in range(count)]


def _window(outputs: tuple[int, ...], kernel: tuple[int, ...], stride: int) -> tuple[int, ...]:
    return tuple(stride * o + k for o, k in zip(outputs, kernel, strict=True))


def matmul(m: int, n: int, k: int) -> TileKernel:
    """[m, k] x [k, n]."""
    i, j, r = _unit(3)
    operands = {"x": ((i, r), (m, k)), "w": ((r, j), (k, n)), "y": ((i, j), (m, n))}
    return TileKernel((m, n, k), (True, True, False), operands, (0, 2, 1))


def convolution(n: int, size: int, c: int, k: int, kernel: int = 3, stride: int = 1) -> TileKernel:
    """A square convolution in NHWC that keeps the size, or divides it by the stride."""
    pad, dims = kernel // 2, _unit(7)
    out, padded = (size + 2 * pad - kernel) // stride + 1, size + 2 * pad
    b, h, w, o, kh, kw, i = dims
    x = (b, _window(h, kh, stride), _window(w, kw, stride), i)
    operands = {
        "x": (x, (n, padded, padded, c)),
        "w": ((kh, kw, i, o), (kernel, kernel, c, k)),
        "y": ((b, h, w, o), (n, out, out, k)),
    }
    extents, parallel = (n, out, out, k, kernel, kernel, c), (True,) * 4 + (False,) * 3
    return TileKernel(extents, parallel, operands, (2, 6, 3), (4, 5), (pad, pad))


def depthwise(n: int, size: int, c: int, kernel: int = 3, stride: int = 1) -> TileKernel:
    """A convolution of every channel by itself, in NHWC."""
    pad, dims = kernel // 2, _unit(6)
    out, padded = (size + 2 * pad - kernel) // stride + 1, size + 2 * pad
    b, h, w, o, kh, kw = dims
    operands = {
        "x": ((b, _window(h, kh, stride), _window(w, kw, stride), o), (n, padded, padded, c)),
        "w": ((kh, kw, o), (kernel, kernel, c)),
        "y": ((b, h, w, o), (n, out, out, c)),
    }
    extents, parallel = (n, out, out, c, kernel, kernel), (True,) * 4 + (False,) * 2
    return TileKernel(extents, parallel, operands, (2, None, 3), (4, 5), (pad, pad))


def elementwise(*shape: int) -> TileKernel:
    """One element of the result for each of x."""
    rows = tuple(_unit(len(shape)))
    operands = {"x": (rows, shape), "y": (rows, shape)}
    return TileKernel(shape, (True,) * len(shape), operands, (None, None, len(shape) - 1 if shape else None))


KERNELS = {
    "resnet18 C2": convolution(1, 56, 64, 64),
    "resnet18 C7": convolution(1, 28, 128, 256, 3, 2),
    "resnet18 C12": convolution(1, 7, 512, 512),
    "resnet50 1x1": convolution(1, 14, 1024, 256, 1),
    "resnet50 stem": convolution(1, 224, 3, 64, 7, 2),
    "lenet conv2": convolution(1, 14, 6, 16, 5),
    "mobilenet dw": depthwise(1, 112, 32),
    "mobilenet add": elementwise(1, 56, 56, 24),
    "gemm 1024": matmul(1024, 1024, 1024),
    "bert ffn": matmul(128, 3072, 768),
    "lstm gates": matmul(1, 2048, 1024),
    "vgg16 fc1": matmul(1, 4096, 25088),
    "classifier": matmul(1, 1000, 512),
}
"""Of shipped networks and benchmarks, by name."""


def problem_of(kernel: TileKernel, machine: TileMachine) -> TileProblem:
    """The problem that a kernel poses on a machine."""
    block = {dim: size for dim, size in zip(kernel.blocked, machine.block, strict=True) if dim is not None}
    dims = tuple(
        TileDim(
            extent,
            parallel,
            step=block.get(number, 1),
            runs_past_end=not parallel and number not in kernel.whole,
            whole=number in kernel.whole,
            blocks=((block[number], block[number]),) if machine.is_fixed and block.get(number, 1) > 1 else (),
        )
        for number, (extent, parallel) in enumerate(zip(kernel.extents, kernel.parallel, strict=True))
    )
    operands = tuple(_operand(name, kernel, machine) for name in kernel.operands)
    result = len(operands) - 1
    work = TileOp(
        "unit",
        tuple(range(len(dims))),
        tuple(range(result)),
        result,
        machine.interval,
        machine.interval,
        tuple(block.items()),
        anchor=not all(kernel.parallel),
        picojoules=4.0,
        touches=tuple((number, 6.0 if number < result else 12.0) for number in range(len(operands))),
    )
    return TileProblem(dims, operands, dict(machine.capacity), (work,), leakage=10.0)


def _operand(name: str, kernel: TileKernel, machine: TileMachine) -> TileOperand:
    rows, shape = kernel.operands[name]
    is_result, scope = name == "y", machine.scopes[name]
    windowed = [sum(map(bool, row)) > 1 for row in rows]
    return TileOperand(
        name,
        scope,
        machine.element_bytes[name],
        rows,
        machine.granule,
        reads=not is_result,
        writes=is_result,
        bounds=shape,
        padding=tuple(kernel.pad if each else (0, 0) for each in windowed) if any(windowed) else None,
        fetch=() if is_result else (replace(machine.load, scope=scope),),
        put=(machine.store,) if is_result else (),
    )


def network_problems() -> Iterator[tuple[str, TileProblem]]:
    """Every kernel on every machine, by the names of both."""
    for (kernel_name, kernel), (machine_name, machine) in product(KERNELS.items(), MACHINES.items()):
        yield f"{kernel_name} on {machine_name}", problem_of(kernel, machine)


def random_problems(count: int, seed: int = 0) -> Iterator[tuple[str, TileProblem]]:
    """So many random problems, by name; the same for the same seed. In some of them nothing fits."""
    for number in range(count):
        random = Random(f"{seed}/{number}")
        kernel = _random_kernel(random)
        machine = random.choice([*MACHINES.values()])
        small = {scope: random.choice((64, 256, 1024, 4096)) * 4 for scope in machine.capacity}
        problem = problem_of(kernel, replace(machine, capacity=small))
        depth = random.choice((None, None, 1, 2))
        dims = tuple(replace(dim, runs_past_end=dim.runs_past_end and random.random() < 0.8) for dim in problem.dims)
        yield f"random {number}", replace(problem, depth=depth, dims=dims)


def _random_kernel(random: Random) -> TileKernel:
    def size(most: int) -> int:
        return random.randint(1, most)

    match random.choice(("matmul", "convolution", "depthwise", "elementwise")):
        case "matmul":
            return matmul(size(40), size(40), size(40))
        case "convolution":
            return convolution(size(2), 2 + size(12), size(20), size(20), 3, size(2))
        case "depthwise":
            return depthwise(size(2), 2 + size(12), size(20))
        case _:
            return elementwise(*(size(12) for _ in range(size(4))))


def smaller_problems(problem: TileProblem) -> Iterator[TileProblem]:
    """The problem in a shorter domain, or with less that is special about it."""
    if problem.depth is not None:
        yield replace(problem, depth=None)
    for number, dim in enumerate(problem.dims):
        for extent in sorted({1, dim.extent // 2, dim.extent - 1}):
            if 1 <= extent < dim.extent:
                yield _with_extent(problem, number, extent)
        if dim.blocks:
            yield replace(problem, dims=_replaced(problem.dims, number, replace(dim, blocks=())))
    for number, operand in enumerate(problem.operands):
        if operand.padding is not None:
            plain = replace(operand, padding=None)
            yield replace(problem, operands=tuple(plain if n == number else o for n, o in enumerate(problem.operands)))


def _replaced(dims: tuple[TileDim, ...], number: int, dim: TileDim) -> tuple[TileDim, ...]:
    return tuple(dim if each == number else old for each, old in enumerate(dims))


def _with_extent(problem: TileProblem, number: int, extent: int) -> TileProblem:
    shorter = problem.dims[number].extent - extent
    dims = _replaced(problem.dims, number, replace(problem.dims[number], extent=extent))
    operands = tuple(
        replace(o, bounds=tuple(b - row[number] * shorter for b, row in zip(o.bounds, o.indices, strict=True)))
        if o.bounds is not None
        else o
        for o in problem.operands
    )
    return replace(problem, dims=dims, operands=operands)


def problem_text(problem: TileProblem) -> str:
    """A problem for people: a line for each dim, operand, scope and op, with what is not usual about it."""
    lines = [f"dim d{number}: {_fields(dim)}" for number, dim in enumerate(problem.dims)]
    lines += [f"operand {number}: {_fields(operand)}" for number, operand in enumerate(problem.operands)]
    lines += [f'scope "{scope}": {size} bytes' for scope, size in problem.capacity.items()]
    lines += [f"op: {_fields(work)}" for work in problem.works]
    lines += [f"depth: {problem.depth}"] if problem.depth is not None else []
    return "\n".join(lines) + "\n"


def _fields(part: TileDim | TileOperand | TileOp) -> str:
    usual = type(part).__dataclass_fields__
    shown = {name: getattr(part, name) for name in usual}
    return ", ".join(f"{name}={value!r}" for name, value in shown.items() if value != usual[name].default)


# What no tile goes below


def least_cycles(problem: TileProblem) -> int:
    """Cycles that no tile goes below: every unit its applications, every bus each element once that is used at all."""
    units: dict[str, int] = {}
    for work in problem.works:
        if work.channel is None:
            issues = Timing(work.interval).cycles(work.loops([dim.extent for dim in problem.dims]))
            units[work.unit] = units.get(work.unit, 0) + issues
    buses: dict[str, int] = {}
    for operand in problem.operands:
        for channel in (*operand.fetch, *operand.put):
            if channel.bus is not None:
                size, cycles = channel.rate
                buses[channel.bus] = buses.get(channel.bus, 0) + least_bytes_of(operand, problem.dims) * cycles // size
    return max([*units.values(), *buses.values()], default=0)


def least_bytes(problem: TileProblem) -> int:
    """Bytes over the edge of the chip that no tile goes below."""
    moved = [(operand, operand.reads + operand.writes) for operand in problem.operands]
    return sum(times * least_bytes_of(operand, problem.dims) for operand, times in moved if times)


def least_bytes_of(operand: TileOperand, dims: Sequence[TileDim]) -> int:
    """The bytes of the elements of an operand that are used and are there."""
    used = [dim for row in operand.indices for dim, coefficient in enumerate(row) if coefficient]
    if len(used) != len({*used}):
        # One dim in two rows: a diagonal, of which one side is counted.
        return operand.element_bytes
    elements = 1
    for number, row in enumerate(operand.indices):
        values = {0}
        for dim, coefficient in enumerate(row):
            if coefficient:
                values = {value + coefficient * at for value in values for at in range(dims[dim].extent)}
        low, high = operand.padding[number] if operand.padding is not None else (0, 0)
        end = max(values) + 1 if operand.bounds is None else operand.bounds[number] - high
        elements *= sum(low <= value < end for value in values)
    return elements * operand.element_bytes
