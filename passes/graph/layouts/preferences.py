"""
Preferred layouts: for each op defined on images, and for matrix products, those a machine computes it best in.

They follow from the machine's own description. A matrix intrinsic without blocks reads each factor of a product by
rows of one of its two dimensions, and a product whose factors are stored by the other is computed as one of their
transposes. The operands of its multiply-accumulate intrinsic say which dimension
of the weights is innermost; an operand that is dense and has several rows (VTA's 16 x 16 weights) can only be loaded
where the blocks adjoin in memory, and asks for blocks of channels. Without a machine, and for element types that its
intrinsics do not take, channels are innermost and not blocked.

Blocks of channels are stored beside each other at each pixel (`NHWC16c`) or as images of their own (`NCHW16c`). Which
is better follows from the engines that move them: see `block_transfers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, f16, f32
from xdsl.ir import Attribute, Operation

from penstock.dialects import graph
from penstock.dialects.graph import NCHW, NHWC, tensor_of
from penstock.dialects.graph.accumulator import summed_in
from penstock.dialects.machine import IntrinsicOp
from penstock.passes.analysis.intrinsics import block_of, pattern_of
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.graph.layouts.block_transfers import overhead
from penstock.passes.graph.layouts.forms import bytes_of

CONTRACTION, WINDOW = 64, 1
"""
What an op costs in a layout that it does not prefer, in multiples of the bytes it reads and writes. A contraction is
as good as bound to its layout: in another no intrinsic computes it. A pool only follows.
"""


@dataclass(frozen=True)
class Preference:
    """Layouts of images and of the filters that go with them; `filters` is None where they are not named."""

    images: str
    filters: str | None = None


CHANNELS_FIRST, CHANNELS_LAST = Preference(NCHW), Preference(NHWC)


@dataclass(frozen=True)
class Contraction:
    """What the matrix intrinsic of a machine takes: element types of activations, weights and sum, and layouts."""

    elements: tuple[Attribute, ...]
    preference: Preference
    intrinsic: IntrinsicOp
    activations: int
    """The number of the operand that activations are."""

    @property
    def block(self) -> int | None:
        """The size of the blocks of channels, if it asks for blocks."""
        return block_of(self.intrinsic, 1 - self.activations)[0] if self.preference.images != NHWC else None

    def preferences(self) -> list[Preference]:
        """The layouts in which it can be used."""
        if self.block is None:
            return [self.preference]
        return [self.preference, Preference(f"{NCHW}{self.block}c", self.preference.filters)]


def contraction_of(intrinsic: IntrinsicOp) -> Contraction | None:
    """What `intrinsic`, if it multiplies matrices and accumulates, prefers: y[m,n] += x[m,k] * w[k,n] or w[n,k]."""
    pattern = pattern_of(intrinsic)
    maps = [operand.index_map for operand in pattern.access.operands]
    if not intrinsic.macs_per_issue() or len(maps) != 3 or any(len(each.results) != 2 for each in maps):
        return None
    used = [[next(iter(expr.used_dims())) for expr in each.results] for each in maps]
    n = used[2][1]
    weights = 0 if n in used[0] else 1
    w, x = used[weights], used[1 - weights]
    if n not in w or x[1] not in w:
        return None
    inner = "oi" if w[0] == n else "io"
    elements = tuple(pattern.specs[number].dtype for number in (1 - weights, weights, 2))
    block = block_of(intrinsic, weights)
    filters = f"HW{inner.upper()}"
    if not block:
        return Contraction(elements, Preference(NHWC, None if filters == "HWIO" else filters), intrinsic, 1 - weights)
    if block[0] != block[1]:
        return None  # a result in blocks of one size is no input in blocks of the other
    blocks = "".join(f"{size}{letter}" for size, letter in zip(block, inner, strict=True))
    return Contraction(elements, Preference(f"{NHWC}{block[0]}c", f"{filters}{blocks}"), intrinsic, 1 - weights)


@dataclass(frozen=True)
class Orientation:
    """How a matrix intrinsic without blocks reads its factors: transposed, if `trans_a`, as rows of k by m."""

    elements: tuple[Attribute, ...]
    """The element types of both factors and of the sum."""
    trans_a: bool
    trans_b: bool

    def takes(self, elements: tuple[Attribute, ...]) -> bool:
        """Whether it multiplies these, or floats that `storage-type` stores as it reads them."""
        pairs = list(zip(elements, self.elements, strict=True))
        return all(one == own or (one == f32 and own == f16) for one, own in pairs) and elements[2] == self.elements[2]


def orientation_of(intrinsic: IntrinsicOp) -> Orientation | None:
    """How `intrinsic` reads the factors of y[m,n], if it multiplies matrices, accumulates, and asks for no blocks."""
    pattern = pattern_of(intrinsic)
    maps = [operand.index_map for operand in pattern.access.operands]
    if not intrinsic.macs_per_issue() or len(maps) != 3 or any(len(each.results) != 2 for each in maps):
        return None
    first, second, (m, n) = ([next(iter(expr.used_dims())) for expr in each.results] for each in maps)
    a, b = (first, second) if m in first else (second, first)
    if m not in a or n not in b or any(block_of(intrinsic, number) for number in range(2)):
        return None
    numbers = (0, 1, 2) if a is first else (1, 0, 2)
    elements = tuple(pattern.specs[number].dtype for number in numbers)
    return Orientation(elements, trans_a=a[0] != m, trans_b=b[0] == n)


class Preferences:
    """The layouts in which ops can be computed, the preferred first, and what each of the others costs."""

    def __init__(self, module: ModuleOp, demanded: str | None = None):
        target = machine_of(module)
        intrinsics = () if target is None else target.intrinsics().values()
        self._target = target
        self._demanded = demanded
        self._contractions = [found for each in intrinsics if (found := contraction_of(each)) is not None]
        self._orientations = [found for each in intrinsics if (found := orientation_of(each)) is not None]

    def of(self, op: Operation) -> list[tuple[Preference, int]]:
        """For an op on images the layouts that it can have, the preferred first, each with its penalty in bytes."""
        layouts = self._wanted(op)
        if self._demanded is None and isinstance(op, graph.PoolOp | graph.GlobalPoolOp):
            # It combines elements of one channel at a time, and is as fast in blocks as with whole channels.
            images = [each.images for found in self._contractions for each in found.preferences()]
            layouts |= {Preference(each): 0 for each in images if each not in {own.images for own in layouts}}
        bound = isinstance(op, graph.ConvOp) or self._demanded is not None
        penalty = (CONTRACTION if bound else WINDOW) * moved_bytes(op)
        offered = {each.images for each in layouts}
        layouts |= {each: penalty for each in (CHANNELS_LAST, CHANNELS_FIRST) if each.images not in offered}
        return list(layouts.items())

    def of_product(self, op: graph.GemmOp | graph.MatmulOp) -> tuple[Preference, int] | None:
        """The blocked layouts in which a product with a matrix is better computed, and what it costs not to."""
        contraction = self._of_contraction(op)
        found = None if contraction is None else contraction.preference
        blocked = found is not None and found.filters is not None and found.images != NHWC
        return (found, CONTRACTION * moved_bytes(op)) if found is not None and blocked else None

    def orientations_of(self, op: graph.GemmOp | graph.MatmulOp) -> list[tuple[bool, bool]]:
        """
        Whether the factors of a product with a matrix are to be stored transposed for the intrinsics that take them:
        every way to do so; none if some intrinsic takes them as they are.
        """
        if not 2 <= tensor_of(op.a).get_num_dims() or tensor_of(op.b).get_num_dims() != 2:
            return []
        elements = element_types(op)
        found = {(each.trans_a, each.trans_b): None for each in self._orientations if each.takes(elements)}
        present = (bool(op.trans_a), bool(op.trans_b)) if isinstance(op, graph.GemmOp) else (False, False)
        return [] if present in found else list(found)

    def _wanted(self, op: Operation) -> dict[Preference, int]:
        """The layouts that an op prefers, with what one of them costs more than others."""
        blockable = not isinstance(op, graph.LrnOp) and not (isinstance(op, graph.ConvOp) and op.group.value.data > 1)
        if self._demanded is not None:
            images = self._demanded if blockable else self._demanded[: len(NCHW)]
            return {Preference(images, _filters_for(images) if isinstance(op, graph.ConvOp) else None): 0}
        if isinstance(op, graph.ConvOp) and blockable and (found := self._of_contraction(op)) is not None:
            assert self._target is not None
            if found.block is None:
                return {found.preference: 0}
            scopes = [spec.scope for spec in found.intrinsic.operand_specs()]
            ends = scopes[found.activations], scopes[-1]
            return {each: overhead(op, each.images, ends, self._target) for each in found.preferences()}
        return {CHANNELS_LAST: 0}

    def _of_contraction(self, op: graph.ConvOp | graph.GemmOp | graph.MatmulOp) -> Contraction | None:
        elements = element_types(op)
        return next((each for each in self._contractions if each.elements == elements), None)


def element_types(op: graph.ConvOp | graph.GemmOp | graph.MatmulOp) -> tuple[Attribute, ...]:
    """The element types of both factors of a contraction, and the type in which it sums."""
    return (*(tensor_of(value).element_type for value in op.operands[:2]), summed_in(op))


def moved_bytes(op: Operation) -> int:
    """The bytes of the first operand and of the result."""
    return sum(bytes_of(value) for value in (op.operands[0], op.results[0]))


def _filters_for(images: str) -> str | None:
    """The layout of filters for images that are demanded in blocks: outputs innermost, so that they make a vector."""
    base, block = images[: len(NCHW)], images[len(NCHW) : -1]
    if not block:
        return None
    return f"HWOI{block}o{block}i" if base == NHWC else f"OIHW{block}i{block}o"
