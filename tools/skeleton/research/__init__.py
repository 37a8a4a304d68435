"""An op with what it computes, a pass that introduces it, and a machine with an intrinsic for it."""

from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Dialect
from xdsl.irdl import irdl_op_definition
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern, op_type_rewrite_pattern
from xdsl.universe import Universe

from penstock.dialects import graph
from penstock.dialects.graph.elementwise import UnaryOp
from penstock.lowering.from_onnx.table import as_declared, imports

MACHINE = Path(__file__).with_name("machine.toml")
"""Known by its name, as those that are shipped are."""


@irdl_op_definition
class SquareOp(UnaryOp):
    """The square of each element."""

    name = "research.square"

    def formula(self, x):
        """What it computes: interpreted, lowered to a `linalg.generic`, and so in C."""
        return x * x


imports("org.research.Square")(as_declared(SquareOp))


class ReplaceProduct(RewritePattern):
    """The product of a value with itself is its square."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: graph.MulOp, rewriter: PatternRewriter) -> None:
        """Replace one."""
        if op.operands[0] is op.operands[1]:
            rewriter.replace(op, SquareOp(op.operands[0]))


@dataclass(frozen=True)
class FindSquaresPass(ModulePass):
    """Replace products of a value with itself. Requires and guarantees the graph level."""

    name = "research-find-squares"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace them all."""
        PatternRewriteWalker(ReplaceProduct()).rewrite_module(op)


UNIVERSE = Universe(
    all_dialects={"research": lambda: Dialect("research", [SquareOp])},
    all_passes={"research-find-squares": lambda: FindSquaresPass},
)
