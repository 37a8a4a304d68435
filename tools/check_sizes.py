# SPDX-License-Identifier: Apache-2.0
"""
`penstock check` of a program whose sizes only a run knows: at each size at 1, at its bound and at one between, the
program that is bound there before and after every pass, and from where it is one program of all sizes on, that one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.functions import bounds_of
from penstock.lowering.bounded import Points, size_words
from penstock.passes.graph.bind_dims import bind_dims
from penstock.runtime.bounded import lower_at_points, passes_of_points, require_host
from penstock.runtime.compiler import LoadedProgram
from penstock.runtime.interpreter import Order
from penstock.runtime.signature import main_function, signature_of
from penstock.tools.lockstep import Lockstep, default_inputs


@dataclass(frozen=True)
class OneForAll(ModulePass):
    """The program of all sizes in the place of that of one."""

    opened: ModuleOp

    name = "one program for all sizes"
    reassociates: ClassVar[bool] = True
    """An attention that is fused at a size, and not in the program of all, sums in another order."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Put it there."""
        for old in list(op.body.block.ops):
            op.body.block.erase_op(old, safe_erase=False)
        for new in list(self.opened.clone().body.block.ops):
            new.detach()
            op.body.block.add_op(new)


def check_sizes(
    args: argparse.Namespace,
    program: LoadedProgram,
    passes: Sequence[ModulePass],
    interleavings: Sequence[Order],
    show: Callable[[str], None],
) -> None:
    """
    Check at each of these sizes, and show a report for each.

    Raises ProgramBroken at the first pass that breaks it at some size; UserError for what is no size at which inputs
    can be drawn, as `lower_at_points` does, and as the passes do.
    """
    given = {"--input": args.input, "--against": args.against, "--reduce": args.reduce, "--backend": args.backend}
    for name, value in given.items():
        if value:
            message = f"{name} is not for a program whose sizes only a run knows"
            raise UserError(message, notes=["bind them: --dim NAME=SIZE"])
    require_host(program.module, args.until, 1, False)
    points = Points(bounds_of(main_function(program.module)))
    first, rest = passes_of_points(passes)
    opened, own = program.module.clone(), make_context()
    own.weights = program.ctx.weights.copy()
    lower_at_points(opened, own, first)
    for sizes in points.within:
        module, own = program.module.clone(), make_context()
        own.weights = program.ctx.weights.copy()
        bind_dims(module, sizes)
        inputs = default_inputs(signature_of(module), seed=args.seed, real=args.real)
        watch = Lockstep(own, inputs, interleavings)
        try:
            watch.run(module, [*first, OneForAll(opened), *rest])
        finally:
            show(f"{size_words(sizes)}:\n{watch.report}")
