# SPDX-License-Identifier: Apache-2.0
"""`patch`: the images of a network part by part, so that none of the large ones is ever whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, NameLoc
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.passes import ModulePass

from penstock.dialects.context import store_of
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import ConcatOp, GraphOp, PadOp, SliceOp, tensor_of
from penstock.dialects.graph.base import boolean, ints, tensor_type
from penstock.dialects.remarks import remark
from penstock.passes.graph.patching.channels import by_channels
from penstock.passes.graph.patching.images import Images, ImageSteps, WindowOp
from penstock.passes.graph.values import NodeBuilder, graph_blocks, rebuilt
from penstock.passes.planning.patches import (
    Chain,
    PatchPlan,
    PatchProblem,
    Reading,
    Spans,
    least_macs,
    least_peak,
    reading,
)

Box = tuple[tuple[int, int], ...]
"""The elements [start, stop) along each spatial dimension."""


@dataclass
class _Writer:
    """Writes the patches of one chain before the op that made its result, and the result out of them after them."""

    images: ImageSteps
    chain: Chain
    spans: Sequence[Spans]
    nodes: NodeBuilder

    def write(self) -> SSAValue:
        counts = [range(count) for count in self.chain.patches]
        made = [self._patch(patch) for patch in product(*counts)]
        for dim in reversed(range(len(counts))):
            count = len(counts[dim])
            made = [self._joined(made[at : at + count], dim, len(made) == count) for at in range(0, len(made), count)]
        return made[0]

    def _joined(self, parts: Sequence[SSAValue], dim: int, is_whole: bool) -> SSAValue:
        if len(parts) == 1:
            return parts[0]
        axis = self.images.spatial[self._values[-1]][dim]
        return self.nodes.add(ConcatOp(parts, axis=axis), "" if is_whole and dim == 0 else "row")

    @property
    def _values(self) -> list[SSAValue]:
        return self.images.values[self.chain.first : self.chain.last + 1]

    def _patch(self, patch: Sequence[int]) -> SSAValue:
        """The patch with a number along each dimension."""
        values = self._values
        held: dict[SSAValue, tuple[SSAValue, Box]] = {}
        for number, value in enumerate(values):
            along = [each.of_patches[at][number] for each, at in zip(self.spans, patch, strict=True)]
            if (box := tuple(span for span in along if span is not None)) and len(box) == len(along):
                if number == 0:
                    held[value] = value, tuple((0, size) for size in self.images.sizes(value))
                else:
                    self._step(self.images.steps[self.chain.first + number - 1], box, held)
        return held[values[-1]][0]

    def _step(self, images: Images, box: Box, held: dict[SSAValue, tuple[SSAValue, Box]]) -> None:
        """All ops of a step for one box of its result."""
        for op in images.ops:
            windows = self.images.windows(op)
            operands: list[SSAValue] = []
            around: list[Reading] = []
            for operand in op.operands:
                if operand not in held:
                    operands.append(operand)
                    continue
                sizes = self.images.sizes(operand)
                reads = [reading(each, *span, size) for each, span, size in zip(windows, box, sizes, strict=True)]
                around = [each for each in reads if each is not None]
                operands.append(self._part(operand, held, tuple((each.start, each.stop) for each in around)))
            held[op.result] = self._rebuilt(op, operands, box, around), box

    def _part(self, value: SSAValue, held: dict[SSAValue, tuple[SSAValue, Box]], box: Box) -> SSAValue:
        """A box of a value of which a larger one is there."""
        whole, around = held[value]
        if box == around:
            return whole
        starts, sizes = [0] * tensor_of(value).get_num_dims(), list(tensor_of(whole).get_shape())
        for dim, (start, stop), (first, _) in zip(self.images.spatial[value], box, around, strict=True):
            starts[dim], sizes[dim] = start - first, stop - start
        return self.nodes.add(SliceOp(whole, starts=starts, sizes=sizes), "halo")

    def _rebuilt(self, op: GraphOp, operands: Sequence[SSAValue], box: Box, around: Sequence[Reading]) -> SSAValue:
        shape = list(tensor_of(op.result).get_shape())
        for dim, (start, stop) in zip(self.images.spatial[op.result], box, strict=True):
            shape[dim] = stop - start
        properties: dict[str, Attribute] = {}
        if isinstance(op, WindowOp):
            properties["pads"] = ints([*(each.before for each in around), *(each.after for each in around)])
            if "ceil_mode" in op.properties:
                properties["ceil_mode"] = boolean(False)
        elif isinstance(op, PadOp):
            pads = list(op.pads.get_values())
            for dim, each in zip(self.images.spatial[op.result], around, strict=True):
                pads[dim], pads[dim + len(shape)] = each.before, each.after
            properties["pads"] = ints(pads)
        new = rebuilt(op, operands, tensor_type(tensor_of(op.result).element_type, shape), **properties)
        new.attributes.update(op.attributes)
        nodes = NodeBuilder(op.location, self.nodes.store, insert=self.nodes.ops.append)
        result = nodes.add(new, "patch")
        result.name_hint = op.result.name_hint
        return result


@dataclass(frozen=True)
class PatchPass(ModulePass):
    """
    Compute chains of convolutions, pools and elementwise ops patch by patch, so that their images are never whole.

    A chain begins and ends where one image alone is alive: a residual block is inside it, with its shortcut. Each
    patch of its result is computed from a patch of its operand, larger by the halo of the windows between; at the
    borders a patch has the padding of the op, elsewhere none. What lies in a halo is computed for each patch that
    needs it. With a `limit` of bytes the chains, and the rows and columns of patches of each, are those that compute
    least again within it: see `passes/planning/patches`. A remark says the peak and the multiply-accumulates.

    Required and guaranteed: the graph level before `graph-fuse`, static sizes. The same results bit for bit. Raises
    UserError where both ways to choose are given or none, for patches that a chain cannot have, for an image that is
    not there, and for a limit that cannot be met, with the least that can.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x4x2x1xf32>) -> tensor<1x4x2x1xf32> {
      %w = graph.constant dense<1.000000e+00> : tensor<3x1x1x1xf32>
      %y = graph.conv %x, %w strides [1, 1] pads [1, 0, 1, 0] dilations [1, 1] layout "NHWC" : (tensor<1x4x2x1xf32>, tensor<3x1x1x1xf32>) -> tensor<1x4x2x1xf32>
      %z = graph.relu %y : tensor<1x4x2x1xf32>
      func.return %z : tensor<1x4x2x1xf32>
    }
    ```
    After (`patch{patches=2,1}`):
    ```mlir
    func.func @main(%x: tensor<1x4x2x1xf32>) -> tensor<1x4x2x1xf32> {
      %w = graph.constant dense<1.000000e+00> : tensor<3x1x1x1xf32>
      %halo = graph.slice %x starts [0, 0, 0, 0] sizes [1, 3, 2, 1] steps [1, 1, 1, 1] : tensor<1x4x2x1xf32> -> tensor<1x3x2x1xf32>
      %y = graph.conv %halo, %w strides [1, 1] pads [1, 0, 0, 0] dilations [1, 1] layout "NHWC" : (tensor<1x3x2x1xf32>, tensor<3x1x1x1xf32>) -> tensor<1x2x2x1xf32>
      %z = graph.relu %y : tensor<1x2x2x1xf32>
      %halo_1 = graph.slice %x starts [0, 1, 0, 0] sizes [1, 3, 2, 1] steps [1, 1, 1, 1] : tensor<1x4x2x1xf32> -> tensor<1x3x2x1xf32>
      %y_1 = graph.conv %halo_1, %w strides [1, 1] pads [0, 0, 1, 0] dilations [1, 1] layout "NHWC" : (tensor<1x3x2x1xf32>, tensor<3x1x1x1xf32>) -> tensor<1x2x2x1xf32>
      %z_1 = graph.relu %y_1 : tensor<1x2x2x1xf32>
      %z_2 = graph.concat %z, %z_1 axis 1 : (tensor<1x2x2x1xf32>, tensor<1x2x2x1xf32>) -> tensor<1x4x2x1xf32>
      func.return %z_2 : tensor<1x4x2x1xf32>
    }
    ```
    """  # noqa: E501

    name = "patch"

    limit: int | None = None
    """Bytes that the images of a function may take at once."""
    patches: tuple[int, ...] | None = None
    """Patches along each spatial dimension, of the chain that begins at the input."""
    until: str | None = None
    """The node whose result that chain makes; without one, as long a chain as there is."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if (self.limit is None) == (self.patches is None):
            raise UserError(
                "patch needs either a limit or patches", notes=["patch{limit=262144}", "patch{patches=4,4}"]
            )
        if self.until is not None and self.patches is None:
            raise UserError("with a limit the chains are chosen: until goes with patches")
        for block in graph_blocks(op):
            function = block.parent_op()
            assert function is not None
            try:
                images, problem, plan = self._chosen(block)
            except UserError as fault:
                raise UserError(fault.message, loc=function.location, notes=fault.notes) from fault
            if not problem.steps:
                continue
            remark(function, "passed", _in_words(problem, plan))
            for step in images.steps:
                if step.groups > 1:
                    nodes = NodeBuilder(step.ops[-1].location, store_of(ctx))
                    _replace(step.ops, by_channels(step.ops, step.groups, nodes), nodes)
            # From the last to the first: a chain that is written reads what the one before it has yet to replace.
            for chain in reversed(plan.chains):
                if chain.is_patched:
                    location = images.steps[chain.last - 1].ops[-1].location
                    _apply(images, problem, chain, NodeBuilder(location, store_of(ctx)))

    def _chosen(self, block: Block) -> tuple[ImageSteps, PatchProblem, PatchPlan]:
        if self.limit is None:
            images = ImageSteps.of(block)
            problem = images.problem()
            return images, problem, self._plan(images, problem) if problem.steps else PatchPlan(())
        # What goes by channels has no patches, and what is whole before it may be the larger of the two.
        forms = [ImageSteps.of(block, self.limit)]
        if any(step.groups > 1 for step in forms[0].steps):
            forms.append(ImageSteps.of(block))
        problems = [(images, images.problem()) for images in forms]
        found = [
            (images, problem, plan)
            for images, problem in problems
            if (plan := least_macs(problem, self.limit)) is not None
        ]
        if not found:
            least = min(least_peak(problem) for _, problem in problems)
            note = f"the least that any patches here take is {least:,} bytes"
            raise UserError(f"the images do not fit {self.limit:,} bytes", notes=[note])
        return min(found, key=lambda each: each[2].macs)

    def _plan(self, images: ImageSteps, problem: PatchProblem) -> PatchPlan:
        assert self.patches is not None
        last = self._end(images, problem)
        rank = len(problem.sizes(last))
        if len(self.patches) != rank or min(self.patches) < 1:
            raise UserError(f"the image has {rank} spatial dimensions, each with at least one patch")
        spans = [problem.spans(0, last, dim, count) for dim, count in enumerate(self.patches)]
        found = [each for each in spans if each is not None]
        if len(found) != rank:
            raise UserError("there are not so many patches of the image, or one of them reads padding only")
        return PatchPlan((problem.chain(0, last, found),))

    def _end(self, images: ImageSteps, problem: PatchProblem) -> int:
        """The cut at which the chain from the input ends."""
        ends: list[int] = []
        for cut in problem.cuts[1:]:
            if not all(step.can_patch for step in images.steps[:cut]):
                break
            ends.append(cut)
        if self.until is None and ends:
            return ends[-1]
        for cut in ends:
            names = {op.location.desc.data for op in images.steps[cut - 1].ops if isinstance(op.location, NameLoc)}
            if self.until in names:
                return cut
        where = "" if self.until is None else f' that ends at "{self.until}"'
        raise UserError(f"no chain of images begins at the input{where}")


def _in_words(problem: PatchProblem, plan: PatchPlan) -> str:
    before = least_macs(problem)
    assert before is not None
    chains = [each for each in plan.chains if each.is_patched]
    if not chains:
        return f"no patches: {before.peak:,} bytes of images"
    sizes = ", ".join("x".join(map(str, each.patches)) for each in chains)
    steps = sum(each.last - each.first for each in chains)
    return (
        f"{steps} of {len(problem.steps)} steps in patches of {sizes}: {before.peak:,} -> {plan.peak:,} bytes of"
        f" images, {plan.macs:,} multiply-accumulates for {problem.macs:,}"
    )


def _apply(images: ImageSteps, problem: PatchProblem, chain: Chain, nodes: NodeBuilder) -> None:
    found = (problem.spans(chain.first, chain.last, dim, count) for dim, count in enumerate(chain.patches))
    spans = [each for each in found if each is not None]
    old = [op for step in images.steps[chain.first : chain.last] for op in step.ops]
    _replace(old, _Writer(images, chain, spans, nodes).write(), nodes)


def _replace(old: Sequence[GraphOp], new: SSAValue, nodes: NodeBuilder) -> None:
    """Let a value that new nodes compute take the place of the result of the last of the old ones."""
    last = old[-1]
    block = last.parent
    assert isinstance(block, Block)
    block.insert_ops_before(nodes.ops, last)
    new.name_hint = last.result.name_hint
    last.result.replace_all_uses_with(new)
    for op in reversed(old):
        op.detach()
        op.erase()
