# SPDX-License-Identifier: Apache-2.0
"""
Sizes that only a run knows, up to a bound: at graph level, and on the way below it.

At graph level a dimension with a bound is symbolic, and its function says which have one, `graph.sizes` and
`graph.bounds`. It is lowered at several sizes, by passes that see numbers, and what the programs have in common is the
program (see `lowering.bounded`). From then on its sizes are values, and buffers have the bytes of the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, did_you_mean, location_of
from penstock.dialects.functions import bounds_of, set_bounds_of
from penstock.dialects.machine import find_target
from penstock.dialects.remarks import remark
from penstock.lowering.bounded import Points, compare, open_sizes, refusal, size_at, size_words
from penstock.passes.graph.bind_dims import bind_dims, symbolic_dims
from penstock.passes.graph.fold_constants import FoldConstantsPass
from penstock.passes.graph.fuse_attention import FuseAttentionPass
from penstock.runtime.levels import level_of
from penstock.runtime.pass_manager import Observer, Progress, run_passes
from penstock.runtime.signature import main_function, signature_of

_PLANNING = "mem-plan"
"""The first pass that sees the program of all sizes."""


def set_bounds(module: ModuleOp, bounds: Mapping[str, int], place: str | None = None) -> None:
    """
    Let dimensions of @main, at graph level, have bounds.

    Raises UserError, at `place`, for a name that is no symbolic dimension of it.
    """
    if not bounds:
        return
    main = main_function(module)
    known = symbolic_dims(main) if level_of(module) == "graph" else {}
    for name in bounds:
        if name not in known:
            there = ", ".join(f'"{each}"' for each in known) or "none: all shapes are static"
            notes = [did_you_mean(name, known) or f"symbolic dimensions: {there}"]
            raise UserError(f'there is no symbolic dimension "{name}"', loc=place, notes=notes)
    set_bounds_of(main, bounds)


def require_host(module: ModuleOp, until: str, threads: int, measure: bool) -> None:
    """Raise UserError where a program of sizes that only a run knows is for more than the host alone."""
    if until == "graph":
        notes = ["penstock import writes it"]
        raise UserError("a program whose sizes only a run knows is open at graph level as it is", notes=notes)
    target = find_target(module)
    if target is not None:
        what = f'the machine "{target.machine_name}"'
    elif threads > 1 or measure:
        what = "several threads" if threads > 1 else "measured tiles"
    else:
        return
    names = ", ".join(f'"{name}"' for name in bounds_of(main_function(module)))
    raise UserError(
        f"a size that only a run knows, {names}, is not for {what}",
        loc=location_of(main_function(module)),
        notes=["bind it, --dim NAME=SIZE; in Python a program with open sizes is compiled for those of each call"],
        status=UNSUPPORTED,
    )


def passes_of_points(passes: Sequence[ModulePass]) -> tuple[Sequence[ModulePass], Sequence[ModulePass]]:
    """
    The passes that run at each of several sizes, and those of the one program.

    A constant of one size is not stored: what repeats a number as often as a size says is computed.
    """
    names = [each.name for each in passes]
    first = names.index(_PLANNING) if _PLANNING in names else len(names)
    kept = [replace(each, growth=0) if isinstance(each, FoldConstantsPass) else each for each in passes[:first]]
    return kept, passes[first:]


def lower_at_points(
    module: ModuleOp,
    ctx: PenstockContext,
    passes: Sequence[ModulePass],
    *,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
) -> None:
    """
    Run passes on a module at graph level whose sizes have bounds, and replace it by the one program for all sizes.

    `observers` and `progress` are told of the first of the sizes. An attention whose blocks depend on a size is not
    fused, which is remarked. Raises UserError as the passes do, with the sizes, as `compare` and `open_sizes`, and,
    located, for an op that some size from 1 to the bound does not fit, or whose shape is no sum of products of the
    sizes.
    """
    points = Points(bounds_of(main_function(module)), _static_sizes(module))
    _require_shapes(module, points)
    unfused = [each for each in passes if not isinstance(each, FuseAttentionPass)]
    try:
        _lower_at_points(module, ctx, points, passes, observers, progress)
    except UserError as error:
        if len(unfused) == len(passes):
            raise
        _lower_at_points(module, ctx, points, unfused, observers, progress)
        said = f"no attention is fused, since its blocks depend on a size that only a run knows: {error.message}"
        remark(main_function(module), "missed", said)


def _lower_at_points(
    module: ModuleOp,
    ctx: PenstockContext,
    points: Points,
    passes: Sequence[ModulePass],
    observers: Sequence[Observer],
    progress: Progress | None,
) -> None:
    modules: list[ModuleOp] = []
    contexts: list[PenstockContext] = []
    for sizes in points.all:
        lowered, own = module.clone(), make_context()
        own.weights = ctx.weights.copy()
        _bind(lowered, sizes, points)
        is_first = not modules
        run_passes(
            own, lowered, passes, observers=observers if is_first else (), progress=progress if is_first else None
        )
        modules.append(lowered)
        contexts.append(own)
    differences = compare(modules, points)
    _require_same_weights(modules[0], contexts)
    open_sizes(modules[0], differences)
    ctx.weights = contexts[0].weights
    body = module.body.block
    for op in list(body.ops):
        body.erase_op(op, safe_erase=False)
    for op in list(modules[0].body.block.ops):
        op.detach()
        body.add_op(op)


def _require_shapes(module: ModuleOp, points: Points) -> None:
    """
    Raise UserError where a shape at the sizes of runs is not what it is as a function of the sizes.

    The points at which a program is lowered lie above the bounds: there, no row is missing, and no slice is cut short.
    """
    places = [*points.within, *points.all]
    shapes = [_shapes_at(module, sizes, points) for sizes in places]
    for op, *alike in zip(module.walk(), *shapes, strict=True):
        for values in zip(*alike, strict=True):
            found = points.fit(values[len(points.within) :])
            if found is None or any(size_at(found, at) != value for at, value in zip(places, values, strict=True)):
                at = " and ".join(f"{values[n]} at {size_words(places[n])}" for n in (0, -1))
                raise refusal(f"a size is no sum of products of the sizes: it is {at}", location_of(op), points)


def _shapes_at(module: ModuleOp, sizes: Mapping[str, int], points: Points) -> list[list[int]]:
    """The sizes of the results of each op of a program, in order; also of an op that the sizes make an identity."""
    bound = module.clone()
    ops = list(bound.walk())
    _bind(bound, sizes, points)
    types = [[result.type for result in op.results] for op in ops]
    return [[size for type in each if isa(type, TensorType) for size in type.get_shape()] for each in types]


def _bind(module: ModuleOp, sizes: Mapping[str, int], points: Points) -> None:
    """Give sizes to a program; raises UserError where it takes only some of those that it should."""
    try:
        bind_dims(module, sizes)
    except UserError as error:
        ranges = ", ".join(f"{name} is from 1 to {most}" for name, most in points.bounds.items())
        notes = [*error.notes, f"it must be right for all sizes, {ranges}: bind them, --dim NAME=SIZE"]
        raise UserError(error.message, loc=error.loc, notes=notes, status=UNSUPPORTED) from None


def _static_sizes(module: ModuleOp) -> frozenset[int]:
    types = (result.type for op in module.walk() for result in op.results)
    return frozenset(size for type in types if isa(type, TensorType) for size in type.get_shape())


def _require_same_weights(module: ModuleOp, contexts: Sequence[PenstockContext]) -> None:
    """Raise UserError where a weight was computed of a size."""
    for name in signature_of(module).weights:
        first, *others = [own.weights[name] for own in contexts]
        if any(each is not first and not _same(first, each) for each in others):
            raise UserError(
                f'the weight "{name}" depends on a size that only a run knows',
                loc=location_of(main_function(module)),
                notes=["bind it: --dim NAME=SIZE"],
                status=UNSUPPORTED,
            )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
