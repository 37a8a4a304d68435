# SPDX-License-Identifier: Apache-2.0
"""The graph as steps on images: what patches of their results need, and how one of them is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.graph import (
    ConcatOp,
    ConvOp,
    DequantizeLinearOp,
    GraphOp,
    LayoutTransformOp,
    LrnOp,
    PadOp,
    PatternKind,
    pattern_kind,
    tensor_of,
)
from penstock.dialects.graph.layout import spatial_dims
from penstock.dialects.graph.window import AveragePoolOp, GlobalPoolOp, PoolOp
from penstock.passes.graph.layouts.forms import bytes_of
from penstock.passes.graph.operator_work import macs_of
from penstock.passes.graph.patching.channels import channel_parts
from penstock.passes.graph.values import is_constant, is_view, only_user
from penstock.passes.planning.patches import PatchProblem, Read, Step, Window

MOST_GROUPS = 16
"""Of channels at most: each of them is program text."""

WindowOp = ConvOp | PoolOp
_PER_ELEMENT = (PatternKind.ELEMENTWISE, PatternKind.BROADCAST)


@dataclass
class Images:
    """Ops that one step stands for: one that begins it, and what is fused after it, element by element."""

    ops: list[GraphOp]
    can_patch: bool
    groups: int = 1
    """Of channels, one after the other: where the ops end in a pool over the whole image."""

    @property
    def result(self) -> SSAValue:
        """What other steps may read."""
        return self.ops[-1].results[0]


@dataclass
class ImageSteps:
    """The ops of a block as the steps of a `PatchProblem`, and where the spatial dimensions of each image are."""

    block: Block
    steps: list[Images] = field(default_factory=list[Images])
    spatial: dict[SSAValue, range] = field(default_factory=dict[SSAValue, range])

    @property
    def values(self) -> list[SSAValue]:
        """The values of the problem: the first argument, and the result of each step."""
        return [*self.block.args[:1], *(step.result for step in self.steps)]

    @staticmethod
    def of(block: Block, room: int | None = None) -> ImageSteps:
        """Those of a block of static sizes. What a pool sums up goes by channels where it does not fit `room` bytes."""
        found = ImageSteps(block)
        found._look_back()
        at: dict[SSAValue, Images] = {}
        for op in block.ops:
            if not isinstance(op, GraphOp) or is_constant(op.result):
                continue
            images = [each for each in op.operands if not is_constant(each)]
            if room is not None and found.steps and (groups := _groups(op, found.steps[-1], room)) > 1:
                at[op.result] = step = found.steps[-1]
                step.ops.append(op)
                step.can_patch, step.groups = False, groups
                continue
            can_patch = all(each in at or each is block.args[0] for each in images) and found._has_patches(op)
            is_fused = can_patch and found._is_fused(op, at)
            step = found.steps[-1] if is_fused else Images([], can_patch)
            if not is_fused:
                found.steps.append(step)
            step.ops.append(op)
            at[op.result] = step
        return found

    def _look_back(self) -> None:
        """Note the dimensions of images before the first op that says them."""
        for op in reversed(list(self.block.ops)):
            if isinstance(op, WindowOp):
                self._note(op.x, spatial_dims(op.layout.data, tensor_of(op.x).get_num_dims()))
            elif isinstance(op, LayoutTransformOp):
                self._has_patches(op)
            elif isinstance(op, PadOp) or pattern_kind(op) in _PER_ELEMENT:
                if (spatial := self.spatial.get(op.results[0])) is None:
                    continue
                for operand in op.operands:
                    if not is_constant(operand) and tensor_of(operand).get_num_dims() > spatial[-1]:
                        self._note(operand, spatial)

    def _is_fused(self, op: GraphOp, at: Mapping[SSAValue, Images]) -> bool:
        """Whether it alone reads the result of the last step so far, element by element."""
        if pattern_kind(op) not in _PER_ELEMENT or not self.steps or not (last := self.steps[-1]).can_patch:
            return False
        return any(at.get(operand) is last for operand in op.operands) and only_user(last.result) is op

    def _has_patches(self, op: GraphOp) -> bool:
        """Whether a part of the result needs a part of each operand that is no constant; notes where that is."""
        shape = tensor_of(op.result).get_shape()
        if isinstance(op, LayoutTransformOp):
            try:
                held = spatial_dims(op.source.data, tensor_of(op.x).get_num_dims())
                made = spatial_dims(op.target.data, len(shape))
            except VerifyException:
                return False
            return self._note(op.x, held) and self._note(op.result, made)
        if isinstance(op, WindowOp):
            if not all(map(is_constant, op.operands[1:])):
                return False
            if isinstance(op, AveragePoolOp) and op.ceil_mode.value.data and op.count_include_pad.value.data:
                return False  # what is beyond the padding never counts
            spatial = spatial_dims(op.layout.data, len(shape))
            return self._note(op.x, spatial) and self._note(op.result, spatial)
        images = [operand for operand in op.operands if not is_constant(operand)]
        known = {spatial for operand in images if (spatial := self.spatial.get(operand)) is not None}
        if len(known) != 1 or not (pattern_kind(op) in _PER_ELEMENT or isinstance(op, ConcatOp | LrnOp | PadOp)):
            return False
        (spatial,) = known
        if isinstance(op, PadOp):
            return self._note(op.result, spatial)
        for operand in op.operands:
            sizes = tensor_of(operand).get_shape()
            if operand in images and (
                len(sizes) != len(shape) or any(sizes[dim] != shape[dim] for dim in spatial) or sizes[0] != shape[0]
            ):
                return False
            # Constants are the same everywhere: those that are not would have to be cut, too.
            behind = [dim - len(shape) for dim in spatial]
            if operand not in images and any(-dim <= len(sizes) and sizes[dim] != 1 for dim in behind):
                return False
        return all(self._note(operand, spatial) for operand in images) and self._note(op.result, spatial)

    def _note(self, value: SSAValue, spatial: range) -> bool:
        return self.spatial.setdefault(value, spatial) == spatial

    def sizes(self, value: SSAValue) -> tuple[int, ...]:
        """The spatial sizes of an image."""
        shape = tensor_of(value).get_shape()
        return tuple(shape[dim] for dim in self.spatial[value])

    def problem(self) -> PatchProblem:
        """What there is to decide. What the program is given and what it returns lie elsewhere than in the arena."""
        values = self.values
        numbers = {value: number for number, value in enumerate(values)}
        steps = [
            Step(
                tuple(self._reads(images, numbers)),
                self.sizes(images.result) if images.result in self.spatial else (1,),
                self._pixel_bytes(images.result),
                self._macs(images),
                images.can_patch,
                len(images.ops) == 1 and (is_view(images.ops[-1]) or _is_inside_readers(images.ops[0])),
                0 if images.groups == 1 else bytes_of(images.ops[-2].result) // images.groups,
            )
            for images in self.steps
        ]
        sizes = self.sizes(values[0]) if values and values[0] in self.spatial else (1,)
        return PatchProblem(sizes, 0, tuple(steps))

    def _reads(self, images: Images, numbers: Mapping[SSAValue, int]) -> list[Read]:
        found: list[Read] = []
        rank = len(self.spatial.get(images.result, range(1)))
        for op in images.ops:
            windows = self.windows(op) if images.can_patch else (Window(),) * rank
            found += (Read(numbers[each], windows) for each in op.operands if each in numbers)
        # What one step hands on inside is not read.
        return [read for read in found if read.value != numbers[images.result]]

    def windows(self, op: GraphOp) -> tuple[Window, ...]:
        """What an element of the result of an op with patches reads of its operands along each spatial dimension."""
        spatial = self.spatial[op.result]
        if isinstance(op, PadOp):
            return tuple(Window(before=op.pads.get_values()[dim]) for dim in spatial)
        if not isinstance(op, WindowOp):
            return (Window(),) * len(spatial)
        kernel = op.kernel_shape if isinstance(op, ConvOp) else op.kernel_shape.get_values()
        strides, dilations = op.strides.get_values(), op.dilations.get_values()
        return tuple(
            Window((size - 1) * dilations[dim] + 1, strides[dim], op.pads.get_values()[dim])
            for dim, size in enumerate(kernel)
        )

    def _pixels(self, value: SSAValue) -> int:
        return prod(self.sizes(value)) if value in self.spatial else 1

    def _pixel_bytes(self, value: SSAValue) -> int:
        if any(isinstance(use.operation, ReturnOp) for use in value.uses):
            return 0
        return bytes_of(value) // self._pixels(value)

    def _macs(self, images: Images) -> int:
        return sum(map(macs_of, images.ops)) // self._pixels(images.result)


def _is_inside_readers(op: GraphOp) -> bool:
    """Whether an op widens elements for one elementwise op, which takes it along."""
    reader = only_user(op.result) if isinstance(op, DequantizeLinearOp) else None
    return isinstance(reader, GraphOp) and pattern_kind(reader) in _PER_ELEMENT


def _groups(pool: GraphOp, step: Images, room: int) -> int:
    """In how many groups of channels a step and a pool over its whole image fit `room` bytes, or come nearest to it."""
    if (
        not isinstance(pool, GlobalPoolOp)
        or only_user(step.result) is not pool
        or not (parts := channel_parts(step.ops))
    ):
        return 1
    held = bytes_of(step.ops[0].operands[0]) + bytes_of(pool.result)
    groups = [count for count in range(1, MOST_GROUPS + 1) if parts % count == 0]
    return next((each for each in groups if held + bytes_of(step.result) // each <= room), groups[-1])
