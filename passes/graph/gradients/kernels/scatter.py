# SPDX-License-Identifier: Apache-2.0
"""
Sums that scatter: the adjoint of a tensor that is read at an affine place of each point of a domain.

What point d adds goes to the place `map(d)`. A `linalg.generic` gathers: it says for each element what is summed. So
the map is turned round. A dim of the tensor that moves with one loop takes the place of that loop. For one that moves
with several, as the image of a convolution does with `h + r`, one loop h becomes p - r, and what is read at h is zero
before the first h and past the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import UNKNOWN_LOC, IndexType
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineDimExpr, AffineExpr, AffineMap

from penstock.dialects.accumulators import accumulator_of
from penstock.passes.analysis.access import linear_form
from penstock.passes.graph.gradients.kernels.scalars import in_type
from penstock.passes.graph.values import erase_dead
from penstock.passes.scalar_body import Body
from penstock.passes.schedule.tile_nest import DimRange
from penstock.passes.shapes import Dims, element_of, loops, shape_of
from penstock.passes.tensor.tensor_builder import TensorBuilder

_DEFINED_EVERYWHERE = (
    arith.AddfOp,
    arith.SubfOp,
    arith.MulfOp,
    arith.NegfOp,
    arith.MaximumfOp,
    arith.MinimumfOp,
    arith.CmpfOp,
    arith.SelectOp,
    arith.ConstantOp,
    arith.ExtFOp,
    arith.TruncFOp,
)
"""Ops that make finite numbers of finite ones: a product of one with zero is zero."""


_Operand = tuple[SSAValue, Dims]
"""A tensor, and how loops index it."""


class NoGather(Exception):
    """A map that cannot be turned round; the message says what about it."""


@dataclass(frozen=True)
class Terms:
    """
    What is summed: an element for each point of a domain.

    Where the operand `seed` is zero, the term is, as far as it is defined at all; `zeroed` are operands that make no
    difference there, the seed among them.
    """

    extents: tuple[int, ...]
    operands: Sequence[tuple[SSAValue, AffineMap]]
    seed: int
    zeroed: frozenset[int]
    compute: Callable[[Body, Sequence[SSAValue]], SSAValue]
    is_product: bool = False
    """Whether the terms are multiplied, and not summed."""


@dataclass(frozen=True)
class _Form:
    """An index: a constant, and the coefficient of each loop."""

    constant: int
    factors: tuple[int, ...]

    @property
    def loops(self) -> list[int]:
        return [loop for loop, factor in enumerate(self.factors) if factor]

    def is_loop(self, loop: int) -> bool:
        """Whether it is one loop as it is."""
        return self.constant == 0 and self.loops == [loop] and self.factors[loop] == 1

    def expression(self, sources: Sequence[AffineExpr]) -> AffineExpr:
        total: AffineExpr | None = None
        for factor, source in zip(self.factors, sources, strict=True):
            if factor:
                term = source if factor == 1 else source * factor
                total = term if total is None else total + term
        constant = AffineExpr.constant(self.constant)
        return constant if total is None else total + self.constant if self.constant else total


def _forms(index_map: AffineMap) -> list[_Form]:
    for expr in index_map.results:
        if not _is_linear(expr):
            raise NoGather("reads at a quotient or a remainder of loops")
    return [_Form(*each) for each in zip(*linear_form(index_map), strict=True)]


def _is_linear(expr: AffineExpr) -> bool:
    if not isinstance(expr, AffineBinaryOpExpr):
        return True
    linear = expr.kind in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul)
    return linear and _is_linear(expr.lhs) and _is_linear(expr.rhs)


def scattered(code: TensorBuilder, terms: Terms, target: AffineMap, shape: Sequence[int]) -> SSAValue:
    """
    A tensor of `shape` with the sum, at each place, of the terms of the points that `target` takes there.

    Sums of floats of fewer than 32 bits are carried in f32. Raises NoGather for a map that cannot be turned round.
    """
    places = _forms(target)
    plan = _Plan(terms, places, shape)
    if plan.windows and not plan.is_direct():
        turned = sorted({loop for place in places for loop in place.loops})
        extents = [terms.extents[loop] for loop in turned]
        kept = AffineMap(len(terms.extents), 0, tuple(AffineExpr.dimension(loop) for loop in turned))
        whole = scattered(code, terms, kept, extents)
        every = AffineMap.identity(len(turned))
        terms = Terms(tuple(extents), [(whole, every)], 0, frozenset({0}), lambda body, xs: xs[0])
        places = [_Form(place.constant, tuple(place.factors[loop] for loop in turned)) for place in places]
        plan = _Plan(terms, places, shape)
    return plan.emit(code)


class _Plan:
    """How one map is turned round: which loop each dim of the tensor takes the place of."""

    def __init__(self, terms: Terms, places: Sequence[_Form], shape: Sequence[int]):
        self.terms = terms
        self.places = places
        self.shape = shape
        self.singles = {dim: place.loops[0] for dim, place in enumerate(places) if len(place.loops) == 1}
        if len(set(self.singles.values())) < len(self.singles):
            raise NoGather("reads at one loop along two dims")
        self.windows: dict[int, int] = {}
        seed_forms = _forms(terms.operands[terms.seed][1])
        for dim, place in enumerate(places):
            if len(place.loops) < 2:
                continue
            used = {loop for other, each in enumerate(places) if other != dim for loop in each.loops}
            free = [loop for loop in place.loops if loop not in used]
            if not free:
                raise NoGather("reads at sums of the same loops along two dims")
            in_seed = [loop for loop in free if any(form.is_loop(loop) for form in seed_forms)]
            self.windows[dim] = max(in_seed or free, key=lambda loop: (terms.extents[loop], -loop))
        turned = {*self.singles.values(), *self.windows.values()}
        self.rest = [loop for loop in range(len(terms.extents)) if loop not in turned]
        """The loops that stay, as reductions."""

    def is_direct(self) -> bool:
        """Whether the terms may be read beyond the ends of the loops that are turned round: they are zero there."""
        block = _body_of(self.terms)
        used = [argument for argument in block.args if argument.uses]
        if not all(isinstance(op, (*_DEFINED_EVERYWHERE, YieldOp)) for op in block.ops):
            return False
        seed_forms = _forms(self.terms.operands[self.terms.seed][1])
        for dim, loop in self.windows.items():
            if not any(form.is_loop(loop) for form in seed_forms):
                return False
            for argument in used:
                for form in _forms(self.terms.operands[argument.index][1]):
                    is_own = form == self.places[dim]
                    is_zeroed = argument.index in self.terms.zeroed and form.is_loop(loop)
                    if loop in form.loops and not is_own and not is_zeroed:
                        return False
        return True

    # the generic

    def _sizes(self) -> list[int]:
        """The shape of what the generic writes, before zeros are put around and between."""
        return [
            self.terms.extents[self.singles[dim]] if dim in self.singles else size if dim in self.windows else 1
            for dim, size in enumerate(self.shape)
        ]

    def emit(self, code: TensorBuilder) -> SSAValue:
        """The sum, of the shape that is asked for."""
        rank, sizes = len(self.shape), self._sizes()
        extents = [*sizes, *(self.terms.extents[loop] for loop in self.rest)]
        sources: list[AffineExpr] = [AffineExpr.constant(0)] * len(self.terms.extents)
        for number, loop in enumerate(self.rest):
            sources[loop] = AffineExpr.dimension(rank + number)
        for dim, loop in self.singles.items():
            here = AffineExpr.dimension(dim)
            last = AffineExpr.constant(self.terms.extents[loop] - 1)
            sources[loop] = last - here if self.places[dim].factors[loop] < 0 else here
        block = _body_of(self.terms)
        element = _yielded(block).type
        kept = [number for number, argument in enumerate(block.args) if argument.uses]
        read = [self._read(code, number, sources, extents) for number in kept]
        read += self._ranges(code, read, extents)

        wide = accumulator_of(element) if self.rest else element

        def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
            given = dict(zip(kept, elements, strict=False))
            # What stands for the others is used by ops alone that nothing uses.
            values = [given.get(number, argument) for number, argument in enumerate(block.args)]
            term = self.terms.compute(_Moved(body, sources), values)
            if not self.rest:
                return term
            return body.apply("mul" if self.terms.is_product else "add", elements[-1], in_type(body, term, wide))

        start = code.fill(sizes, wide, int(self.terms.is_product)) if self.rest else code.empty(sizes, element)
        found = code.generic(read, (start, loops(rank)), len(self.rest), compute)
        assert isinstance(found.owner, Operation)
        erase_dead(found.owner.regions[0].block, Operation)
        if wide != element:
            found = code.map(lambda body, xs: body.cast(xs[0], element, False), found, element=element)
        return self._placed(code, found)

    def _read(self, code: TensorBuilder, number: int, sources: Dims, extents: Sequence[int]) -> _Operand:
        """An operand, and how the new loops index it; with zeros around it where they pass its ends."""
        value, index_map = self.terms.operands[number]
        results: list[AffineExpr] = []
        low, high = [0] * len(index_map.results), [0] * len(index_map.results)
        for position, form in enumerate(_forms(index_map)):
            window = next((dim for dim, loop in self.windows.items() if loop in form.loops), None)
            if window is None:
                results.append(form.expression(sources))
            elif form == self.places[window]:
                results.append(AffineExpr.dimension(window))
            else:
                loop = self.windows[window]
                step = self.places[window].factors[loop]
                value = _spread(code, value, position, abs(step))
                expr, first, last = self._turned(window, loop, sources, extents)
                size = shape_of(value)[position]
                low[position], high[position] = max(0, -first), max(0, last - size + 1)
                results.append(expr + low[position] if low[position] else expr)
        return code.pad(value, low, high, 0), results

    def _turned(
        self, dim: int, loop: int, sources: Sequence[AffineExpr], extents: Sequence[int]
    ) -> tuple[AffineExpr, int, int]:
        """A loop times its step, as dim - the other loops, and the least and the largest that it is."""
        place = self.places[dim]
        sign = 1 if place.factors[loop] > 0 else -1
        others = _Form(place.constant, tuple(0 if n == loop else f for n, f in enumerate(place.factors)))
        inner = AffineExpr.dimension(dim) - others.expression(sources)
        found = AffineMap(len(extents), 0, (inner if sign > 0 else inner * -1,))
        ((constant,), (row,)) = linear_form(found)
        ends = [(0, factor * (extent - 1)) for factor, extent in zip(row, extents, strict=True)]
        first, last = constant + sum(map(min, ends)), constant + sum(map(max, ends))
        return _Form(constant, row).expression(loops(len(extents))), first, last

    def _ranges(self, code: TensorBuilder, read: Sequence[_Operand], extents: Sequence[int]) -> list[_Operand]:
        """An operand that only lends its shape to the reduction loops that index nothing alone."""
        alone = {expr.position for _, exprs in read for expr in exprs if isinstance(expr, AffineDimExpr)}
        missing = [loop for loop in range(len(self.shape), len(extents)) if loop not in alone]
        if not missing:
            return []
        element = element_of(self.terms.operands[self.terms.seed][0])
        window = code.empty([extents[loop] for loop in missing], element)
        return [(window, [AffineExpr.dimension(loop) for loop in missing])]

    def _placed(self, code: TensorBuilder, value: SSAValue) -> SSAValue:
        """What the generic wrote, where it belongs in the whole tensor."""
        low, high = [0] * len(self.shape), [0] * len(self.shape)
        for dim, (place, size) in enumerate(zip(self.places, self.shape, strict=True)):
            if dim in self.windows:
                continue
            extent, step, first = 1, 1, place.constant
            if (loop := self.singles.get(dim)) is not None:
                extent, step = self.terms.extents[loop], abs(place.factors[loop])
                first += min(0, place.factors[loop]) * (extent - 1)
            value = _spread(code, value, dim, step)
            reach = (extent - 1) * step + 1
            sizes = list(shape_of(value))
            sizes[dim] = reach
            value = code.slice(value, [DimRange(0, each) for each in sizes])
            low[dim], high[dim] = first, size - first - reach
        return code.pad(value, low, high, 0)


class _Moved(Body):
    """A body in which the index of an old loop is an expression of the new ones."""

    def __init__(self, body: Body, sources: Sequence[AffineExpr]):
        super().__init__(body.block, body.location)
        self._sources = sources

    def index(self, dim: int) -> SSAValue:
        """The number of old loop `dim`."""
        form = _forms(AffineMap(_loops_in(self._sources), 0, (self._sources[dim],)))[0]
        total = self.constant(form.constant, IndexType())
        for loop in form.loops:
            factor = self.constant(form.factors[loop], IndexType())
            total = self.add(total, self.mul(super().index(loop), factor))
        return total


def _spread(code: TensorBuilder, value: SSAValue, dim: int, step: int) -> SSAValue:
    """A tensor with `step - 1` zeros after each element of a dim; itself for a step of 1."""
    if step == 1:
        return value
    shape = shape_of(value)
    apart = code.reshape(value, [*shape[: dim + 1], 1, *shape[dim + 1 :]])
    padded = code.pad_spatial(apart, dim + 1, [0], [step - 1], 0)
    return code.reshape(padded, [*shape[:dim], shape[dim] * step, *shape[dim + 1 :]])


def _loops_in(sources: Sequence[AffineExpr]) -> int:
    return 1 + max((loop for source in sources for loop in source.used_dims()), default=-1)


def _body_of(terms: Terms) -> Block:
    """The ops of a term, without those that nothing uses, by themselves."""
    block = Block(arg_types=[element_of(value) for value, _ in terms.operands])
    body = Body(block, UNKNOWN_LOC)
    body.end(terms.compute(body, block.args))
    erase_dead(block, Operation)
    return block


def _yielded(block: Block) -> SSAValue:
    assert block.last_op is not None
    return block.last_op.operands[0]
