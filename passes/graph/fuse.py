# SPDX-License-Identifier: Apache-2.0
"""Group the ops of a graph into kernels, as TVM does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, NameLoc, StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.graph import ConcatOp, FusedOp, PadOp, PatternKind, YieldOp, pattern_kind
from penstock.dialects.remarks import is_listened, remark
from penstock.passes.analysis.kernels import machine_of, processor_of
from penstock.passes.graph.fusion.groups import MAX_OPS, Kind, Rule, Veto
from penstock.passes.graph.fusion.nodes import FusionGraph, PlannedGroup, planned_groups, splat
from penstock.passes.graph.fusion.rows import are_rows
from penstock.passes.graph.fusion.spm_model import SpmModel, cheaper
from penstock.passes.graph.storage_type import multiplies_halves_only
from penstock.passes.graph.values import erase_dead, graph_blocks
from penstock.passes.planning.tilers.registry import DEFAULT_TILER
from penstock.passes.planning.tilers.registry import tiler as find_tiler

WORDS = {
    PatternKind.ELEMENTWISE: "elementwise",
    PatternKind.BROADCAST: "broadcasting",
    PatternKind.INJECTIVE: "injective",
    PatternKind.REDUCTION: "a reduction",
    PatternKind.COMPLEX_OUT_FUSABLE: "a contraction or a pool",
    PatternKind.OPAQUE: "opaque",
}


def called(op: Operation) -> str:
    """What the model calls an op, or else what it is."""
    what = op.name.rpartition(".")[-1]
    return f"{op.location.desc.data} ({what})" if isinstance(op.location, NameLoc) else what


def _readers(op: Operation) -> list[Operation]:
    return list(dict.fromkeys(use.operation for use in op.results[0].uses))


def _reading(blocker: Operation) -> str:
    """Why an op that reads the result of a group does not take it."""
    kind = pattern_kind(blocker)
    if isinstance(blocker, ConcatOp):
        return f"{called(blocker)} joins it to the results of other kernels"
    if isinstance(blocker, PadOp):
        return f"{called(blocker)} pads it, which takes all of it first"
    if kind in (PatternKind.COMPLEX_OUT_FUSABLE, PatternKind.OPAQUE):
        return f"{called(blocker)} takes nothing before it"
    return f"{called(blocker)} is {WORDS[kind]}, and what follows a contraction or a pool is elementwise"


@dataclass
class Remarks:
    """The groups of a block, and for each a sentence that names the op at which it ends, and the rule."""

    graph: FusionGraph
    groups: Sequence[PlannedGroup]

    def __post_init__(self) -> None:
        self._group_of = {op: group for group in self.groups for op in group.members}

    def of(self, group: PlannedGroup) -> str:
        """Why a group is not larger."""
        stop, end, ops = group.stop, group.end, self.graph.ops
        toward = "" if stop.toward is None else called(ops[stop.toward])
        blocker = end if stop.blocker is None else ops[stop.blocker]
        if stop.rule == Rule.ESCAPES:
            outside = [op for op in _readers(end) if op not in ops]
            return "the function returns it" if outside[0].name == "func.return" else f"{outside[0].name} reads it"
        if stop.rule == Rule.EDGE:
            return _reading(blocker)
        if stop.rule in (Rule.ANCHORS, Rule.PATH):
            way = "" if stop.blocker == stop.toward else f", on the way to {toward},"
            return f"{called(blocker)}{way} {self._obstacle(blocker)}"
        return {
            Rule.UNUSED: "nothing reads it",
            Rule.OPAQUE: f"{called(end)} is opaque",
            Rule.NO_JOIN: f"{' and '.join(called(op) for op in _readers(end)[:2])} read it, and no later op joins them",
            Rule.REDUCTION: f"{toward} follows a reduction",
            Rule.TUPLE: f"{toward} joins it to the results of other kernels",
            Rule.TOO_MANY_OPS: f"with {toward} it would have too many ops",
            Rule.TOO_MANY_ARGUMENTS: f"with {toward} it would read too many values",
            Rule.VETO: f"not with {toward}: {stop.words}",
        }[stop.rule]

    def _obstacle(self, blocker: Operation) -> str:
        """Why an op, or the kernel that it is in, takes no part."""
        group = self._group_of.get(blocker)
        hardest = max(group.members, key=lambda op: pattern_kind(op).level) if group is not None else blocker
        if hardest is not blocker:
            return f"is in the kernel of {called(hardest)}"
        kind = pattern_kind(blocker)
        if kind == PatternKind.REDUCTION:
            return "is a reduction, which takes only elementwise and broadcasting ops"
        return f"is {WORDS[kind]} and takes nothing before it"


REMARK = "fusion_remark"
"""The attribute of a group that says why it is not larger."""


def _only_chains(graph: FusionGraph) -> Veto:
    """For a machine that stores f16 between kernels: what follows a contraction is a chain."""
    nodes = graph.nodes

    def veto(merged: Sequence[int], parts: Sequence[Sequence[int]]) -> str | None:
        if all(nodes[index].kind != Kind.COMPLEX_OUT_FUSABLE for index in merged):
            return None
        inside = set(merged)
        readers = [use.consumer for index in merged for use in nodes[index].uses if use.consumer in inside]
        if len(readers) == len(merged) - 1 and len(set(readers)) == len(readers):
            return None
        return "a tile's values are used once, and where it is cut they would be stored in f32 instead of f16"

    return veto


def _outline(group: PlannedGroup, remark: str | None) -> None:
    """Move the ops of a group into a `graph.fused` at the place of its last one."""
    last = group.root
    body = Block()
    inside: dict[SSAValue, SSAValue] = {}
    inputs: list[SSAValue] = []
    for op in group.members:
        for operand in op.operands:
            if operand in inside:
                continue
            if (constant := splat(operand)) is not None:
                clone = constant.clone()
                body.add_op(clone)
                inside[operand] = clone.result
            else:
                inside[operand] = body.insert_arg(operand.type, len(body.args))
                inside[operand].name_hint = operand.name_hint
                inputs.append(operand)
        body.add_op(op.clone(inside))
    result = inside[last.results[0]]
    body.add_op(YieldOp(result))
    kind = max((pattern_kind(op) for op in group.members), key=lambda kind: kind.level)
    fused = FusedOp(inputs, body, pattern=kind)
    fused.location = last.location
    fused.results[0].name_hint = last.results[0].name_hint
    if remark is not None:
        fused.attributes[REMARK] = StringAttr(remark)
    Rewriter.insert_op(fused, InsertPoint.before(last))
    last.results[0].replace_all_uses_with(fused.results[0])
    for op in reversed(group.members):
        Rewriter.erase_op(op)


@dataclass(frozen=True)
class GraphFusePass(ModulePass):
    """
    Put every op of @main that computes something into a `graph.fused`, which becomes one kernel.

    The groups are those of TVM's algorithm: see `fusion/groups.py` for its kinds, its three phases and its limits,
    `max_ops` and `max_arguments`. A convolution, matrix product or pool takes the elementwise ops that follow it, a
    reduction the elementwise and broadcasting ones before it, injective ops each other; a diamond goes as a whole,
    and a group has one result. Where two contractions meet, as at a residual addition, the one that is computed
    last goes on: TVM takes the one that its traversal meets first, and so do we, in a traversal that begins there.

    Four rules of ours go beyond the algorithm. A constant is a parameter and no partner; one that is one
    number in the text is repeated inside, others are operands. A `graph.reshape` and a `graph.slice` that takes runs
    of neighbouring elements are views: they stay in @main at the ends of a group, and are inside only between what
    is computed. A `graph.concat` is in a group only with all that it joins: else it stays in @main, where each
    producer writes its part into the whole. Ops that read indices from memory (gathers) are opaque, and not injective
    as in TVM: they are loops, and not one expression. What is padded is computed by another kernel.

    On a host whose file says what its registers hold, groups are merged that are computed row by row, reductions and
    all: a softmax with what is before and after it, a normalization. See `fusion/rows.py`.

    On a machine that stores f16 between kernels, what follows a contraction in its group is a chain: `assign-devices`
    cuts off what is used twice, and a value on which a group is cut is stored as it is, in f32.

    With the strategy "spm" two groups only merge where the bytes go down that go off chip and back, for the machine in
    tiles that fit its scopes: see `fusion/spm_model.py`. Where that cannot be told, or leads to more, groups are those
    of TVM. Raises UserError for a `tiler` that there is not.

    A group takes the position and the location of its last op. Constants that nothing reads any more are removed.

    See Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3.

    Before:
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>, %s: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %six = graph.constant dense<6.000000e+00> : tensor<f32>
      %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
          : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
      %a = graph.add %c, %s : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
      %m = graph.min %a, %six : (tensor<1x4x6x6xf32>, tensor<f32>) -> tensor<1x4x6x6xf32>
      %y = graph.max_pool %m kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1]
          : tensor<1x4x6x6xf32> -> tensor<1x4x3x3xf32>
      func.return %y : tensor<1x4x3x3xf32>
    }
    ```
    After (`graph-fuse`):
    ```mlir
    func.func @main(%x: tensor<1x3x8x8xf32>, %s: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
      %w = graph.constant #graph.weight<"conv.weight"> : tensor<4x3x3x3xf32>
      %m = graph.fused(%x, %w, %s) pattern complex_out_fusable {
      ^bb0(%x_1: tensor<1x3x8x8xf32>, %w_1: tensor<4x3x3x3xf32>, %s_1: tensor<1x4x6x6xf32>):
        %c = graph.conv %x_1, %w_1 strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
            : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
        %a = graph.add %c, %s_1 : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
        %six = graph.constant dense<6.000000e+00> : tensor<f32>
        %m_1 = graph.min %a, %six : (tensor<1x4x6x6xf32>, tensor<f32>) -> tensor<1x4x6x6xf32>
        graph.yield %m_1 : tensor<1x4x6x6xf32>
      } : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
      %y = graph.fused(%m) pattern complex_out_fusable {
      ^bb0(%m_1: tensor<1x4x6x6xf32>):
        %y_1 = graph.max_pool %m_1 kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1]
            : tensor<1x4x6x6xf32> -> tensor<1x4x3x3xf32>
        graph.yield %y_1 : tensor<1x4x3x3xf32>
      } : (tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32>
      func.return %y : tensor<1x4x3x3xf32>
    }
    ```
    """

    name = "graph-fuse"

    strategy: Literal["tvm", "spm"] = "tvm"
    """"spm" also compares the bytes that the machine in the module moves, if there is one."""
    max_ops: int = MAX_OPS
    """Ops in one group; a concatenation counts twice."""
    max_arguments: int | None = None
    """Values that one group reads from outside; any number by default."""

    tiler: str = DEFAULT_TILER
    """With "spm": the tiler that says which tiles fit and what they move; `assign-devices` should be told the same."""

    remarks: bool = False
    """Whether each group gets an attribute `fusion_remark`, which says why it is not larger."""

    PARTS: ClassVar = {"tiler": find_tiler}
    """What finds the part that an option names."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for block in graph_blocks(op):
            graph, groups = self._plan(op, block)
            remarks, wanted = Remarks(graph, groups), self.remarks or is_listened()
            for group, reason in [(group, remarks.of(group) if wanted else "") for group in groups]:
                remark(group.root, "analysis", f"a group of {len(group.members)}: {reason}")
                _outline(group, reason if self.remarks else None)
            erase_dead(block)

    def explain(self, module: ModuleOp) -> list[str]:
        """What each group would be made of and why it would not be larger, a line a group; changes nothing."""
        lines: list[str] = []
        for block in graph_blocks(module):
            remarks = Remarks(*self._plan(module, block))
            for group in remarks.groups:
                more = f" and {len(group.members) - 1} more" if len(group.members) > 1 else ""
                lines.append(f"{called(group.root)}{more}: {remarks.of(group)}")
        return lines

    def _plan(self, module: ModuleOp, block: Block) -> tuple[FusionGraph, list[PlannedGroup]]:
        target = machine_of(module)
        halves = target is not None and multiplies_halves_only(target)

        def only_chains(graph: FusionGraph) -> Veto | None:
            return _only_chains(graph) if halves else None

        fits = are_rows if processor_of(module) is not None else None
        graph, groups = planned_groups(
            block, only_chains, max_ops=self.max_ops, max_arguments=self.max_arguments, fits=fits
        )
        if target is None or self.strategy == "tvm":
            return graph, groups
        models: list[SpmModel] = []

        def make_veto(graph: FusionGraph) -> Veto:
            known = SpmModel(graph, target, halves, self.tiler) if not models else models[-1]
            models.append(replace(known, graph=graph, otherwise=only_chains(graph)))
            return models[-1].veto

        found, own = planned_groups(block, make_veto, max_ops=self.max_ops, max_arguments=self.max_arguments)
        position = {op: index for index, op in enumerate(block.ops)}
        return found, sorted(cheaper(models[-1], own, graph, groups), key=lambda group: position[group.root])
