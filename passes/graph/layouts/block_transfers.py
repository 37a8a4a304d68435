"""What the descriptors of images in blocks of channels cost a machine, beside the bytes that they move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import NCHW, tensor_of
from penstock.dialects.graph.layout import parse_layout
from penstock.dialects.machine import DRAM, DmaOp, TargetOp
from penstock.passes.analysis.commands.command_loops import descriptors


def overhead(op: graph.ConvOp, images: str, scopes: tuple[str, str], target: TargetOp) -> int:
    """
    What loading the image of a convolution and storing its result costs in a layout `images`, in bytes that the buses
    could move meanwhile: the latencies of descriptors and the overheads of their rows.

    A block of channels is moved at a time, which is what remains possible however small the scopes are: then each
    pixel is a row where blocks are beside each other, and a row of pixels is one where they are not.
    """
    shapes = [_extents(op, value) for value in (op.x, op.result)]
    if any(shape is None for shape in shapes):
        return 0
    block = parse_layout(images).block("C")
    planes = images.startswith(NCHW)
    pads = op.pads.get_values()
    around = pads[0] + pads[2], pads[1] + pads[3]
    hanging = [max(pads[0], pads[2]), max(pads[1], pads[3])]
    total = 0
    for number, (shape, scope) in enumerate(zip(shapes, scopes, strict=True)):
        assert shape is not None
        n, c, h, w = shape
        blocks = -(-c // block)
        engine = target.dma_between(*((DRAM, scope) if number == 0 else (scope, DRAM)))
        if engine is None:
            return 0
        more = (0, 0) if number else around
        box = [h + more[0], w + more[1], block]
        stored = [h, w, block] if planes else [h, w, blocks, block]
        strides = [prod(stored[at + 1 :]) for at in range(2)]
        sides = [[*strides, 1], [box[1] * block, block, 1]]
        own = {dim: pad for dim, pad in enumerate(hanging) if pad and not number}
        total += n * blocks * _cost(engine, box, sides, own, target, block)
    return total


def _extents(op: graph.ConvOp, value: SSAValue) -> list[int] | None:
    """N, C, H and W of an image; None where it is not two-dimensional."""
    shape = list(tensor_of(value).get_shape())
    if len(shape) != 4:
        return None
    return shape if op.layout.data == NCHW else [shape[0], shape[3], *shape[1:3]]


def _cost(
    engine: DmaOp,
    box: Sequence[int],
    sides: Sequence[Sequence[int]],
    pads: Mapping[int, int],
    target: TargetOp,
    block: int,
) -> int:
    count, rows = descriptors(engine, box, sides, block, pads)
    moved, cycles = target.buses()[engine.bus_name].bytes_per_cycle if engine.bus_name else (1, 1)
    return (count * engine.latency_cycles + rows * engine.row_overhead_cycles) * moved // cycles
