# SPDX-License-Identifier: Apache-2.0
"""
Preferred layouts: for each op defined on images, and for matrix products, those a machine computes it best in.

They follow from the machine's own description. A matrix intrinsic without blocks reads each factor of a product by
rows of one of its two dimensions, and a product whose factors are stored by the other is computed as one of their
transposes. The operands of its multiply-accumulate intrinsic say which dimension
of the weights is innermost; an operand that is dense and has several rows (VTA's 16 x 16 weights) can only be loaded
where the blocks adjoin in memory, and asks for blocks of channels. Without a machine, and for element types that its
intrinsics do not take, channels are innermost and not blocked.

Blocks of channels are stored beside each other at each pixel (`NHWC16c`) or as images of their own (`NCHW16c`). Which
is better follows from the engines that move them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from xdsl.dialects.builtin import ModuleOp, f16, f32
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import NCHW, NHWC, tensor_of
from penstock.dialects.graph.base import summed_in
from penstock.dialects.graph.layout import parse_layout
from penstock.dialects.machine import DRAM, IntrinsicOp, TargetOp
from penstock.passes.analysis.commands.command_loops import descriptors
from penstock.passes.analysis.intrinsics import block_of, pattern_of
from penstock.passes.analysis.kernels import machine_of, processor_of
from penstock.passes.analysis.library_calls import cycles_of_call
from penstock.passes.analysis.vector_products import vector_products
from penstock.passes.analysis.work import vector_unit
from penstock.passes.graph.contractions import ContractionOp
from penstock.passes.graph.layouts.forms import bytes_of
from penstock.passes.planning.register_blocks import product_cycles
from penstock.passes.shapes import shape_of

CONTRACTION, WINDOW = 64, 1
"""
What an op costs in a layout that it does not prefer, in multiples of the bytes it reads and writes. A contraction is
as good as bound to its layout: in another no intrinsic computes it. A pool only follows.
"""


VECTORS = 2, 3, 1
"""How many vectors of output channels filters have beside each other, the best first, where these divide them."""


@dataclass(frozen=True)
class Preference:
    """Layouts of images and of the filters that go with them; `filters` is None where they are not named."""

    images: str
    filters: str | None = None


CHANNELS_FIRST, CHANNELS_LAST = Preference(NCHW), Preference(NHWC)


@dataclass(frozen=True)
class MatrixIntrinsic:
    """An intrinsic that adds to y[m,n] the products of a[m,k] and b[k,n], each factor stored so or transposed."""

    intrinsic: IntrinsicOp
    elements: tuple[Attribute, ...]
    """The element types of a, b and y."""
    activations: int
    """The number of the operand that is a."""
    trans_a: bool
    trans_b: bool

    @property
    def is_blocked(self) -> bool:
        """Whether one of the factors is loaded in blocks."""
        return any(block_of(self.intrinsic, number) for number in range(2))

    def preferences(self) -> list[Preference]:
        """The layouts in which it computes convolutions, the preferred first; none if it does not."""
        if self.trans_a:
            return []
        inner = "oi" if self.trans_b else "io"
        filters = f"HW{inner.upper()}"
        block = block_of(self.intrinsic, 1 - self.activations)
        if not block:
            return [Preference(NHWC, None if filters == "HWIO" else filters)]
        if block[0] != block[1]:
            return []  # a result in blocks of one size is no input in blocks of the other
        blocks = "".join(f"{size}{letter}" for size, letter in zip(block, inner, strict=True))
        return [Preference(f"{images}{block[0]}c", f"{filters}{blocks}") for images in (NHWC, NCHW)]

    def takes(self, elements: tuple[Attribute, ...]) -> bool:
        """Whether it multiplies these, or floats that `storage-type` stores as it reads them."""
        pairs = list(zip(elements, self.elements, strict=True))
        return all(one == own or (one == f32 and own == f16) for one, own in pairs) and elements[2] == self.elements[2]


def matrix_intrinsic(intrinsic: IntrinsicOp) -> MatrixIntrinsic | None:
    """`intrinsic` as a product of matrices, if it is one that accumulates."""
    pattern = pattern_of(intrinsic)
    maps = [operand.index_map for operand in pattern.access.operands]
    if not intrinsic.macs_per_issue() or len(maps) != 3 or any(len(each.results) != 2 for each in maps):
        return None
    first, second, (m, n) = ([next(iter(expr.used_dims())) for expr in each.results] for each in maps)
    activations = 0 if m in first else 1
    a, b = (second, first) if activations else (first, second)
    if m not in a or n not in b:
        return None
    elements = tuple(pattern.specs[number].dtype for number in (activations, 1 - activations, 2))
    return MatrixIntrinsic(intrinsic, elements, activations, trans_a=a[0] != m, trans_b=b[0] == n)


class Preferences:
    """The layouts in which ops can be computed, the preferred first, and what each of the others costs."""

    def __init__(self, module: ModuleOp, demanded: str | None = None):
        target = machine_of(module)
        intrinsics = () if target is None else target.intrinsics().values()
        self._target = target
        self._demanded = demanded
        self._host = processor_of(module)
        self._vector_products = () if self._host is None else vector_products(self._host)
        own = () if self._host is None else self._host.intrinsics().values()
        self._calls = [found for each in own if each.is_call and (found := matrix_intrinsic(each)) is not None]
        self._products = [found for each in intrinsics if (found := matrix_intrinsic(each)) is not None]

    def of(self, op: Operation) -> list[tuple[Preference, int]]:
        """For an op on images the layouts that it can have, the preferred first, each with its penalty in bytes."""
        layouts = self._wanted(op)
        if self._demanded is None and isinstance(op, graph.PoolOp | graph.GlobalPoolOp):
            # It combines elements of one channel at a time, and is as fast in blocks as with whole channels.
            images = [each.images for found in self._products for each in found.preferences()]
            layouts |= {Preference(each): 0 for each in images if each not in {own.images for own in layouts}}
        bound = isinstance(op, graph.ConvOp) or self._demanded is not None
        penalty = (CONTRACTION if bound else WINDOW) * moved_bytes(op)
        offered = {each.images for each in layouts}
        layouts |= {each: penalty for each in (CHANNELS_LAST, CHANNELS_FIRST) if each.images not in offered}
        return list(layouts.items())

    def of_product(self, op: graph.GemmOp | graph.MatmulOp) -> tuple[Preference, int] | None:
        """The blocked layouts in which a product with a matrix is better computed, and what it costs not to."""
        if tensor_of(op.b).get_num_dims() < 2:
            return None
        found = self._of_contraction(op)
        if found is None:
            packed = self._packed(op, *_features(op))
        else:
            packed = next((each for each in found.preferences() if each.images != NHWC), None)
        if packed is None or packed.filters is None:
            return None
        return packed, CONTRACTION * moved_bytes(op)

    def orientations_of(self, op: graph.GemmOp | graph.MatmulOp) -> list[tuple[bool, bool]]:
        """
        Whether the factors of a product with a matrix are to be stored transposed for the intrinsics that take them:
        every way to do so; none if some intrinsic takes them as they are.
        """
        if not 2 <= tensor_of(op.a).get_num_dims() or tensor_of(op.b).get_num_dims() != 2:
            return []
        elements = element_types(op)
        found = {
            (each.trans_a, each.trans_b): None
            for each in self._products
            if not each.is_blocked and each.takes(elements)
        }
        present = (bool(op.trans_a), bool(op.trans_b)) if isinstance(op, graph.GemmOp) else (False, False)
        return [] if present in found else list(found)

    def _wanted(self, op: Operation) -> dict[Preference, int]:
        """The layouts that an op prefers, with what one of them costs more than others."""
        blockable = not isinstance(op, graph.LrnOp) and not (isinstance(op, graph.ConvOp) and op.group.value.data > 1)
        if self._demanded is not None:
            images = self._demanded if blockable else self._demanded[: len(NCHW)]
            return {Preference(images, _filters_for(images) if isinstance(op, graph.ConvOp) else None): 0}
        if isinstance(op, graph.ConvOp) and blockable and (found := self._of_contraction(op)) is not None:
            layouts = found.preferences()
            assert self._target is not None
            if len(layouts) == 1:
                return {layouts[0]: 0}
            scopes = [spec.scope for spec in found.intrinsic.operand_specs()]
            ends = scopes[found.activations], scopes[-1]
            return {each: overhead(op, each.images, ends, self._target) for each in layouts}
        if isinstance(op, graph.ConvOp):
            outputs, inputs = tensor_of(op.w).get_shape()[:2]
            if (packed := self._packed(op, outputs, inputs, op.group.value.data)) is not None:
                return {packed: 0}
        if isinstance(op, graph.ConvOp) and self._host is not None and op.group.value.data > 1:
            return {CHANNELS_LAST: 0, CHANNELS_FIRST: self._in_columns(op, self._host)}
        return {CHANNELS_LAST: 0}

    @staticmethod
    def _in_columns(op: graph.ConvOp, host: TargetOp) -> int:
        """
        The penalty of a convolution of groups of channels whose vectors are of columns: the bytes that could be moved
        in the cycles that it takes longer, at least those that it does move. Each row of a padded image is copied by
        itself, its last vector may not be full, and a stride loads the elements between.
        """
        penalty = WINDOW * moved_bytes(op)
        processor, unit = host.processor(), vector_unit(host, *op.operand_types[:2], op.result.type)
        if processor is None or unit is None:
            return penalty
        (inputs, *image), (outputs, *result) = shape_of(op.x)[1:], shape_of(op.result)[1:]
        groups, window = op.group.value.data, prod(shape_of(op.w)[1:])
        stride = op.strides.get_values()[-1]
        loads = unit.loads_of(stride) if stride <= 2 else unit.lanes
        (once, each), most = unit.tile, unit.most_rows(1)
        vectors = outputs * prod(result[:-1]) * unit.vectors_along(result[-1])
        tile = each + once / min(prod(result[:-1]), most)
        columns = vectors * (window * max(1 / unit.fmas, loads / unit.loads) + tile)
        # The channels of a group are vectors by themselves, unless a group is one.
        vectors = groups * unit.vectors_along(outputs // groups) if inputs > groups else outputs / unit.lanes
        channels = prod(result) * vectors * (window / unit.fmas + each + once / min(result[-1], most))
        if any(op.pads.get_values()):
            run = unit.row_overhead + 2 * unit.vectors_along(image[-1]) / unit.loads
            columns += inputs * prod(image[:-1]) * run
            channels += inputs * prod(image) / unit.lanes * 2 / unit.loads
        batch = shape_of(op.x)[0]
        return max(penalty, int(batch * (columns - channels) / processor.cycles_per_byte))

    def _packed(self, op: ContractionOp, outputs: int, inputs: int, groups: int = 1) -> Preference | None:
        """
        Filters, or the second factor of a product, in the order in which the host's registers read them: as many output
        channels, or columns, as two vectors hold, or one, beside each other. Images and rows keep their channels last,
        which are blocks as well where those divide them. Groups of channels are not padded, and no input channels
        of filters that then have blocks of output channels only.
        """
        if groups == 1 and any(each.elements == element_types(op) for each in self._vector_products):
            return self._grouped(op, outputs, inputs)
        host = self._host
        if host is None or (unit := vector_unit(host, *op.operand_types[:2], op.result.type)) is None:
            return None
        if {*element_types(op)} != {tensor_of(op.result).element_type}:
            return None
        if isinstance(op, graph.GemmOp | graph.MatmulOp) and prod(tensor_of(op.result).get_shape()[:-1]) == 1:
            # A matrix that one row is multiplied by is read once, as it lies.
            return None
        rows = _rows(op)
        calls = [
            cycles_of_call(each.intrinsic, (rows, outputs, inputs), unit, host)
            for each in self._calls
            if rows and each.elements == element_types(op) and not (each.trans_a or each.trans_b)
        ]
        most = unit.packing if groups == 1 else 1
        outputs //= groups
        choices: list[tuple[Fraction, Preference]] = []
        for vectors in (2, 1):
            block, cycles = vectors * unit.lanes, product_cycles(unit, vectors)
            padded = -(-outputs // block) * -(-inputs // block) * block * block
            if padded <= most * outputs * inputs:
                choices.append((padded * cycles, Preference(f"{NHWC}{block}c", f"OHWI{block}i{block}o")))
            if isinstance(op, graph.ConvOp) and groups == 1 and outputs % block == 0:
                choices.append((outputs * inputs * cycles, Preference(NHWC, f"OHWI{block}o")))
        if not choices:
            return None
        least, packed = min(choices, key=lambda each: each[0])
        # A library packs what it reads.
        return Preference(NHWC) if calls and min(calls) < rows * least else packed

    def _grouped(self, op: ContractionOp, outputs: int, inputs: int) -> Preference | None:
        """
        Filters in the order in which an intrinsic of the host reads them: the input channels whose products it adds
        at once innermost, around them the output channels of a few vectors.
        """
        for each in self._vector_products:
            for vectors in VECTORS:
                block = vectors * each.lanes
                if each.elements == element_types(op) and inputs % each.group == 0 and outputs % block == 0:
                    return Preference(NHWC, f"OHWI{block}o{each.group}i")
        return None

    def _of_contraction(self, op: ContractionOp) -> MatrixIntrinsic | None:
        """The first intrinsic that computes it as a convolution."""
        elements = element_types(op)
        return next((each for each in self._products if each.elements == elements and each.preferences()), None)


def element_types(op: ContractionOp) -> tuple[Attribute, ...]:
    """The element types of both factors of a contraction, and the type in which it sums."""
    return (*(tensor_of(value).element_type for value in op.operands[:2]), summed_in(op))


def _features(op: graph.GemmOp | graph.MatmulOp) -> tuple[int, int]:
    """The columns of the result of a product with a matrix, and those of the first factor; what its filters have."""
    inputs, outputs = tensor_of(op.b).get_shape()[-2:]
    return (inputs, outputs) if isinstance(op, graph.GemmOp) and op.trans_b else (outputs, inputs)


def _rows(op: ContractionOp) -> int:
    """The rows of the matrix that a contraction is a product of, pixels of a convolution of 1x1; 0 for none."""
    if isinstance(op, graph.ConvOp) and prod(tensor_of(op.w).get_shape()[2:]) > 1:
        return 0
    features = tensor_of(op.w).get_shape()[0] if isinstance(op, graph.ConvOp) else _features(op)[0]
    return prod(tensor_of(op.result).get_shape()) // features


def moved_bytes(op: Operation) -> int:
    """The bytes of the first operand and of the result."""
    return sum(bytes_of(value) for value in (op.operands[0], op.results[0]))


def _filters_for(images: str) -> str | None:
    """The layout of filters for images that are demanded in blocks: outputs innermost, so that they make a vector."""
    base, block = images[: len(NCHW)], images[len(NCHW) : -1]
    if not block:
        return None
    return f"HWOI{block}o{block}i" if base == NHWC else f"OIHW{block}i{block}o"


# what descriptors cost


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
    reach = [max(pads[0], pads[2]), max(pads[1], pads[3])]
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
        own = {dim: pad for dim, pad in enumerate(reach) if pad and not number}
        count, rows = descriptors(engine, box, sides, block, own)
        moved, cycles = target.buses()[engine.bus_name].bytes_per_cycle if engine.bus_name else (1, 1)
        latency = count * engine.latency_cycles + rows * engine.row_overhead_cycles
        total += n * blocks * (latency * moved // cycles)
    return total


def _extents(op: graph.ConvOp, value: SSAValue) -> list[int] | None:
    """N, C, H and W of an image; None where it is not two-dimensional."""
    shape = list(tensor_of(value).get_shape())
    if len(shape) != 4:
        return None
    return shape if op.layout.data == NCHW else [shape[0], shape[3], *shape[1:3]]
