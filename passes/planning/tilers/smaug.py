# SPDX-License-Identifier: Apache-2.0
"""
SMAUG's strategies: cut only the named dims of tensors in NHWC, and take the largest tiles that fit.

Xi, Yao, Bhardwaj, Whatmough, Wei and Brooks, "SMAUG: End-to-End Full-Stack Simulation Infrastructure for Deep Learning
Workloads", ACM TACO 17(4), 2020. A strategy is named by the dims that it may cut: N the batch of the activations, and
the kernels of the weights, which are the channels of the result; C the channels that are summed over, or those of
tensors that are not; H and W rows and columns. The window of a convolution is never cut. `smaug` takes the first of
none, N, NC, NH, NW, NHW, NCH and NCW with which the smallest tile fits. Of the tiles that cut no other dims, the one
whose parts take the most bytes is taken; channels are cut into multiples of what an intrinsic takes at once. The loops
are, from outside, those of the batch, rows, columns, kernels, and last the channels that are summed over; there is one
slot in every scope.

SMAUG decides for inputs, weights and outputs each, which have scratchpads of their own; here one strategy is for all
tensors of a kernel, since scopes may be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from penstock.passes.planning.tile_problem import TileDim, TileOp, TileOperand, TileProblem, thinned, tile_sizes
from penstock.passes.planning.tilers.largest import MAX_TILES
from penstock.passes.planning.tiling import DoesNotFit, TilePlan, equal_depths, tiles_that_fit

KERNELS = "K"
"""The letter of the dims that weights have and activations do not; N may cut them, too."""
PREFERENCE = ("", "N", "NC", "NH", "NW", "NHW", "NCH", "NCW")
"""The strategies in the order in which SMAUG tries them."""
_LOOPS = "NHWKC"
"""From outside."""


def smaug(problem: TileProblem) -> TilePlan:
    """The largest tile of the first strategy that has one; raises DoesNotFit and NoTile."""
    *others, last = PREFERENCE
    for strategy in others:
        with suppress(DoesNotFit):
            return _largest(problem, strategy)
    return _largest(problem, last)


def _largest(problem: TileProblem, strategy: str) -> TilePlan:
    letters = dim_letters(problem)
    allowed = {*strategy, *(KERNELS if "N" in strategy else "")}
    choices = [
        _sizes(dim, number, letter) if letter in allowed else tile_sizes(dim, number)[-1:]
        for number, (dim, letter) in enumerate(zip(problem.dims, letters, strict=True))
    ]
    tiles = tiles_that_fit(problem, thinned(choices, MAX_TILES))
    held = sum((tiles.held[n] for n, o in enumerate(problem.operands) if o.scope is not None), tiles.ones * 0)
    best = int(np.argmax(held))
    tile = tuple(int(size[best]) for size in tiles.tile)
    cut = [number for number, dim in enumerate(problem.dims) if tile[number] < dim.extent]
    order = tuple(sorted(cut, key=lambda d: (not problem.dims[d].parallel, _LOOPS.find(letters[d]), d)))
    return TilePlan(problem, tile, order, equal_depths(problem, order))


def _sizes(dim: TileDim, number: int, letter: str) -> list[int]:
    """Of channels and kernels, whole vectors of an intrinsic; of the others each size that is worth trying."""
    sizes = tile_sizes(dim, number)
    if letter not in ("C", KERNELS):
        return sizes
    return [size for size in sizes if size % dim.step == 0 or size >= dim.extent] or sizes


def _strategy(letters: str, cut: str) -> Callable[[TileProblem], TilePlan]:
    """The tiler that takes the largest tile of one strategy, which cuts some dims; it raises DoesNotFit and NoTile."""

    def strategy(problem: TileProblem) -> TilePlan:
        return _largest(problem, letters)

    strategy.__doc__ = f"Cuts {cut}."
    return strategy


none = _strategy("", "nothing: the whole kernel is one tile")
n = _strategy("N", "the batch and kernels")
c = _strategy("C", "channels")
h = _strategy("H", "rows")
w = _strategy("W", "columns")
nc = _strategy("NC", "the batch, kernels and channels")
nh = _strategy("NH", "the batch, kernels and rows")
nw = _strategy("NW", "the batch, kernels and columns")
ch = _strategy("CH", "channels and rows")
cw = _strategy("CW", "channels and columns")
hw = _strategy("HW", "rows and columns")
nhw = _strategy("NHW", "the batch, kernels, rows and columns")
nch = _strategy("NCH", "the batch, kernels, channels and rows")
ncw = _strategy("NCW", "the batch, kernels, channels and columns")


def dim_letters(problem: TileProblem) -> tuple[str, ...]:
    """
    What each dim of the domain is to SMAUG: N, H, W, C, K for the kernels of weights, or "" for the window of one.

    Where something is summed, the activations are the operand that a window moves over, or else the first one that is
    read. A dim that moves a window is W if it is the last such, else H; of the other dims of the activations, those
    that are summed over, and those after the windows, are C, and those before are N. Without a window the first dim of
    the activations is N, the last of several W, and those between H. Parallel dims that they lack are K. Where nothing
    is summed, the first dim of the result is N, the last C, the one before it W, and the others are H; one alone is C.
    """
    dims = problem.dims
    letters = ["C" if not dim.parallel else KERNELS for dim in dims]
    if all(dim.parallel for dim in dims):
        named = _dims_of(_result(problem))
        middle = ["H"] * max(0, len(named) - 3) + ["W"] * (len(named) > 2)
        for dim, letter in zip(named, ["N", *middle, "C"] if len(named) > 1 else ["C"], strict=False):
            letters[dim] = letter
        return tuple(letters)
    activations = _activations(problem)
    windows = [[d for d, c in enumerate(row) if c] for row in activations.indices if sum(map(bool, row)) > 1]
    inside = [dim for row in windows for dim in row if not dims[dim].parallel]
    moved = [dim for row in windows for dim in row if dims[dim].parallel]
    others = [dim for dim in _dims_of(activations) if dims[dim].parallel and dim not in moved]
    for dim in inside:
        letters[dim] = ""
    for dim in moved:
        letters[dim] = "W" if dim == moved[-1] else "H"
    rows = _dims_of(activations)
    for dim in others:
        if moved:
            letters[dim] = "N" if rows.index(dim) < rows.index(moved[0]) else "C"
        else:
            letters[dim] = "N" if dim == others[0] else "W" if dim == others[-1] else "H"
    return tuple(letters)


def _dims_of(operand: TileOperand) -> list[int]:
    """The dims of the domain that index an operand, in the order of its own."""
    return list(dict.fromkeys(dim for row in operand.indices for dim, coefficient in enumerate(row) if coefficient))


def _main_op(problem: TileProblem) -> TileOp | None:
    """The op that reduces, else the last."""
    return next((work for work in reversed(problem.works) if work.anchor), next(reversed(problem.works), None))


def _result(problem: TileProblem) -> TileOperand:
    written = [operand for operand in problem.operands if operand.writes]
    work = _main_op(problem)
    return written[0] if written else problem.operands[work.writes if work is not None else -1]


def _activations(problem: TileProblem) -> TileOperand:
    work = _main_op(problem)
    read: Sequence[TileOperand] = [problem.operands[number] for number in work.reads] if work is not None else []
    read = read or [operand for operand in problem.operands if operand.reads] or problem.operands
    return next((operand for operand in read if any(sum(map(bool, row)) > 1 for row in operand.indices)), read[0])
