# SPDX-License-Identifier: Apache-2.0
"""
Contractions of what integers stand for, as contractions of the integers: zero points leave the products exactly.

    sum (x - zx) (w - zw) = sum x w - zx sum w - zw sum x + n zx zw

With constant weights all but the first term are constants, or zw goes into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import IntegerType, Signedness, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import SelectsElements, integer_bounds, is_unsigned
from penstock.dialects.locations import location_of_value
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.analysis.vector_products import VectorProduct, products_at_once
from penstock.passes.graph.contractions import (
    ContractionOp,
    channels_of,
    contraction_length,
    input_axis,
    on_integers,
    weight_axis,
)
from penstock.passes.graph.values import NodeBuilder, constant_array, derived, rebuilt

BYTE = range(-128, 128)
SIGN = 128
"""What unsigned integers are above the signed ones with the same scale."""


@dataclass(frozen=True)
class Stored:
    """The 8-bit integers of a factor: real = (value - zero) * scale."""

    value: SSAValue
    zero: Array
    """i64, a scalar or a vector along `axis`."""
    scale: Array
    """f32, a scalar or a vector along `axis`."""
    axis: int = 0


def added_as(element: Attribute) -> int:
    """What 8-bit integers of the other kind are moved by to become those of a type."""
    return SIGN if is_unsigned(element) else -SIGN


def is_byte(value: SSAValue) -> bool:
    """Whether a value holds 8-bit integers, signed or not."""
    bounds = integer_bounds(tensor_of(value).element_type)
    return bounds is not None and len(bounds) == 256


def stored_factor(value: SSAValue, store: WeightStore) -> Stored | None:
    """What a factor in float dequantises, if its scale and zero point are constants; else None."""
    op = value.owner
    if not isinstance(op, graph.DequantizeLinearOp) or not is_byte(op.x):
        return None
    found = linear_parameters(op, store)
    return None if found is None else Stored(op.x, found[1], found[0], op.along or 0)


def linear_parameters(op: graph.LinearOp, store: WeightStore) -> tuple[Array, Array] | None:
    """The scale, f32, and the zero point, i64, of a (de)quantisation; None where they are no constants."""
    scale, zero = constant_array(op.scale, store), constant_array(op.zero_point, store)
    if scale is None or scale.dtype != np.float32 or (zero is None and op.zero_point is not None):
        return None
    return scale, np.zeros_like(scale, np.int64) if zero is None else zero.astype(np.int64)


def centred_factor(value: SSAValue, store: WeightStore) -> Stored | None:
    """
    The 8-bit integers in a factor that is one, or is 32-bit integers: a difference to a zero point, or a constant.

    The importers of ONNX's integer operators write such differences; zero points differ along one dimension at most.
    """
    if is_byte(value):
        return Stored(value, np.asarray(0, np.int64), np.asarray(1, np.float32))
    op = value.owner
    if not isinstance(op, graph.SubOp) or not isinstance(wide := op.a.owner, graph.CastOp) or not is_byte(wide.x):
        return None
    zero = constant_array(op.b, store)
    rank = tensor_of(wide.x).get_num_dims()
    if zero is None or zero.ndim > rank:
        return None
    varying = [rank - zero.ndim + dim for dim, size in enumerate(zero.shape) if size != 1]
    if len(varying) > 1:
        return None
    vector = zero.astype(np.int64).reshape([-1] * len(varying))
    return Stored(wide.x, vector, np.asarray(1, np.float32), varying[0] if varying else 0)


class IntegerProducts(NodeBuilder):
    """Rewrites contractions of a block; what is added is inserted before the op `before`."""

    def __init__(self, store: WeightStore, before: Operation, products: Sequence[VectorProduct] = ()):
        """`products` are those of intrinsics of the host; without one, first factors have a sign."""
        super().__init__(before.location, store, insert=self._insert_before)
        self.before = before
        self._products = products
        unsigned = any(is_unsigned(each.elements[0]) for each in products)
        self._element = IntegerType(8, Signedness.UNSIGNED) if unsigned else i8
        """What the first factors of products are stored as."""
        self._stored: dict[tuple[SSAValue, Attribute], SSAValue] = {}

    def _insert_before(self, op: Operation) -> None:
        Rewriter.insert_op(op, InsertPoint.before(self.before))

    def takes(self, op: ContractionOp, x: Stored, w: Stored) -> bool:
        """Whether the factors of a contraction are stored as those of its products are."""
        elements = [tensor_of(each.value).element_type for each in (x, w)]
        return elements == [self._element, i8] and not self._missing(op, tensor_of(w.value).get_shape())

    def stored(self, value: SSAValue, element: Attribute = i8) -> SSAValue:
        """8-bit integers as those of a type: 128 less where that has a sign and they have none, or 128 more."""
        if tensor_of(value).element_type == element:
            return value
        if (known := self._stored.get((value, element))) is None:
            known = self._stored[value, element] = self._shifted(value, element)
        return known

    def _shifted(self, value: SSAValue, element: Attribute) -> SSAValue:
        """128 more or less: what computes them computes that as well, or they are recomputed from."""
        op, by = value.owner, added_as(element)
        dtype = np.uint8 if is_unsigned(element) else np.int8
        array = constant_array(value, self.store)
        if array is not None:
            return self._after_definition(
                value, [self.constant_op((array.astype(np.int16) + by).astype(dtype), "stored")]
            )
        if isinstance(op, graph.QuantizeLinearOp):
            zero = constant_array(op.zero_point, self.store)
            if zero is not None or op.zero_point is None:
                whole = np.zeros((), np.int16) if zero is None else zero.astype(np.int16)
                if zero is None and tensor_of(op.scale).get_num_dims():
                    whole = np.zeros(tensor_of(op.scale).get_shape(), np.int16)
                new, axis = self.constant_op((whole + by).astype(dtype), "zero"), op.axis.value.data
                Rewriter.insert_op(new, InsertPoint.before(op))
                return self._after(op, graph.QuantizeLinearOp(op.x, op.scale, new, element_type=element, axis=axis))
        if isinstance(op, graph.ClipOp):
            bounds = [None if each is None else each.value.data + by for each in (op.min, op.max)]
            return self._after(op, graph.ClipOp(self.stored(op.x, element), min=bounds[0], max=bounds[1]))
        if isinstance(op, graph.PadOp):
            return self._after(
                op,
                graph.PadOp(self.stored(op.x, element), pads=op.pads.get_values(), value=op.value.value.data + by),
            )
        if isinstance(op, GraphOp) and op.has_trait(SelectsElements):
            operands = [self.stored(op.operands[0], element), *op.operands[1:]]
            result = graph.Tensor(element, tensor_of(value).get_shape())
            return self._after(op, rebuilt(op, operands, result))
        wide, sign = graph.CastOp(value, i32), self.constant_op(np.asarray(by, np.int32), "sign")
        moved = graph.AddOp(wide, sign)
        return self._after_definition(value, [wide, sign, moved, graph.CastOp(moved, element)])

    def _after_definition(self, value: SSAValue, ops: Sequence[GraphOp]) -> SSAValue:
        """Insert ops right after the definition of a value, where whatever is derived from it can use them."""
        owner = value.owner
        point = InsertPoint.after(owner) if isinstance(owner, Operation) else InsertPoint.at_start(owner)
        for op in ops:
            op.location = derived(location_of_value(value), "stored")
        ops[-1].result.name_hint = "stored"
        Rewriter.insert_op(ops, point)
        return ops[-1].result

    def _after(self, op: Operation, new: GraphOp) -> SSAValue:
        new.location = op.location
        new.result.name_hint = op.results[0].name_hint
        Rewriter.insert_op(new, InsertPoint.after(op))
        return new.result

    # products

    def product(self, op: ContractionOp, x: Stored, w: Stored, bias: Array | None) -> SSAValue | None:
        """
        The contraction of (x - zx) and (w - zw) in 32 bits plus `bias`, a vector along the channels, of products of
        8-bit integers; None if there is no such form.

        Overflow wraps, so the sums are those of the differences, bit for bit, even then.
        """
        array = constant_array(w.value, self.store)
        if x.zero.ndim:
            return None
        if array is None:
            return self._computed_product(op, x, w, bias)
        if w.zero.ndim and w.axis != weight_axis(op):
            return None
        whole, zeros = array.astype(np.int64), _along(w.zero, w.axis, array.ndim)
        centred, rest = whole - zeros, None
        stored = centred
        if not _fits_byte(centred):
            below = SIGN if is_unsigned(tensor_of(w.value).element_type) else 0
            stored, rest = whole - below, w.zero - below
        first, zero = self.stored(x.value, self._element), self._zero_of(x, self._element)
        pads, missing = None, self._missing(op, array.shape)
        if missing or (isinstance(op, graph.ConvOp) and zero and any(op.pads.get_values())):
            first = self._padded(op, first, zero, missing)
            pads = [0] * len(op.pads.get_values()) if isinstance(op, graph.ConvOp) else None
        second = w.value
        if (
            array.dtype != np.int8
            or missing
            or not np.array_equal(stored, whole)
            or not isinstance(w.value.owner, graph.ConstantOp)
        ):
            second = self.constant(_with_zeros(op, stored.astype(np.int8), missing), "weights")
        total = self.add(on_integers(op, first, second, pads), "sums")
        if rest is not None:
            total = self._without_zero_points(op, total, first, rest, array.shape, pads, missing)
        if zero:
            if isinstance(op, graph.MatmulOp) and centred.ndim > 2:
                total = self._plus(total, _wrapped(-zero * centred.sum(axis=-2, keepdims=True)))
            else:
                correction = -zero * _sums(op, centred)
                bias = correction if bias is None else bias.astype(np.int64) + correction
        if bias is not None:
            total = self._plus(total, self._of_channels(op, bias))
        return total

    @staticmethod
    def _zero_of(factor: Stored, element: Attribute) -> int:
        """The zero point of a factor that is stored in a type."""
        changes = tensor_of(factor.value).element_type != element
        return int(factor.zero) + (added_as(element) if changes else 0)

    def _without_zero_points(
        self,
        op: ContractionOp,
        total: SSAValue,
        x: SSAValue,
        zeros: Array,
        shape: tuple[int, ...],
        pads: Sequence[int] | None,
        missing: int,
    ) -> SSAValue:
        """Sums minus zw sum x: the sums of x are one more channel, with weights of 1."""
        axis = weight_axis(op)
        # Groups of channels have sums of their own; each channel computes that of its group.
        grouped = isinstance(op, graph.ConvOp) and op.group.value.data != 1
        ones = [1 if dim == axis and not grouped else size for dim, size in enumerate(shape)]
        second = self.constant(_with_zeros(op, np.ones(ones, np.int8), missing), "ones")
        lines = self.add(on_integers(op, x, second, pads), "lines")
        factor = _wrapped(zeros) if not zeros.ndim else self._of_channels(op, zeros)
        scaled = self.add(graph.MulOp(lines, self.constant(factor, "zero")), "scaled")
        return self.add(graph.SubOp(total, scaled), "centred")

    def _of_channels(self, op: ContractionOp, vector: Array) -> Array:
        """A vector along the channels of the result, in a shape that broadcasts to it."""
        return _wrapped(vector).reshape(-1, *[1] * self._after_channels(op))

    @staticmethod
    def _after_channels(op: ContractionOp) -> int:
        return tensor_of(op.results[0]).get_num_dims() - 1 - channels_of(op)

    def _plus(self, total: SSAValue, addend: Array) -> SSAValue:
        if not np.any(addend):
            return total
        return self.add(graph.AddOp(total, self.constant(addend, "bias")), "biased")

    def _missing(self, op: ContractionOp, shape: Sequence[int]) -> int:
        """How many input channels weights of a shape lack for what an intrinsic of the host adds at once."""
        outputs = weight_axis(op)
        if outputs is None or (isinstance(op, graph.ConvOp) and op.group.value.data != 1):
            return 0
        if isinstance(op, graph.MatmulOp) and len(shape) != 2:
            return 0
        return -shape[input_axis(op)] % products_at_once(self._products, shape[outputs])

    def _padded(self, op: ContractionOp, x: SSAValue, zero: int, missing: int) -> SSAValue:
        """The first factor with the zero point around an image, and in as many more channels at their end."""
        rank = tensor_of(x).get_num_dims()
        channels, around = rank - 1, [0] * (2 * rank)
        if isinstance(op, graph.ConvOp):
            channels = channels_of(op)
            pads, first, spatial = op.pads.get_values(), 2 if op.layout.data == graph.NCHW else 1, rank - 2
            for dim in range(spatial):
                around[first + dim], around[rank + first + dim] = pads[dim], pads[spatial + dim]
        elif isinstance(op, graph.GemmOp) and op.trans_a:
            channels = 0
        around[rank + channels] = missing
        return self.add(graph.PadOp(x, pads=around, value=float(zero)), "padded")

    def _computed_product(self, op: ContractionOp, x: Stored, w: Stored, bias: Array | None) -> SSAValue | None:
        """A matrix product of two computed factors, with the sums of rows and columns subtracted."""
        ranks = [tensor_of(each.value).get_num_dims() for each in (x, w)]
        if not isinstance(op, graph.MatmulOp) or w.zero.ndim or min(ranks) < 2:
            return None
        elements = self._element, i8
        values = [self.stored(each.value, element) for each, element in zip((x, w), elements, strict=True)]
        zeros = [self._zero_of(each, element) for each, element in zip((x, w), elements, strict=True)]
        total = self.add(on_integers(op, values[0], values[1]), "sums")
        for value, zero, axis in ((values[0], zeros[1], ranks[0] - 1), (values[1], zeros[0], ranks[1] - 2)):
            if not zero:
                continue
            wide = self.add(graph.CastOp(value, i32), "wide")
            sums = self.add(graph.ReduceSumOp(wide, axes=[axis], keepdims=True), "lines")
            scaled = self.add(graph.MulOp(sums, self.constant(np.asarray(zero, np.int32), "zero")), "scaled")
            total = self.add(graph.SubOp(total, scaled), "centred")
        number = contraction_length(op) * zeros[0] * zeros[1]
        addend = np.asarray(0 if bias is None else bias.astype(np.int64)) + number
        return self._plus(total, _wrapped(addend))


def _along(vector: Array, axis: int, rank: int) -> Array:
    return vector.reshape([-1 if dim == axis else 1 for dim in range(rank)]) if vector.ndim else vector


def _with_zeros(op: ContractionOp, weights: Array, missing: int) -> Array:
    """Weights with as many more input channels at their end, of zeros."""
    return np.pad(weights, [(0, missing if dim == input_axis(op) else 0) for dim in range(weights.ndim)])


def _fits_byte(array: Array) -> bool:
    return not array.size or (int(array.min()) in BYTE and int(array.max()) in BYTE)


def _sums(op: ContractionOp, weights: Array) -> Array:
    """The sums of the weights of each channel of the result."""
    return weights.sum(axis=tuple(dim for dim in range(weights.ndim) if dim != weight_axis(op)))


def _wrapped(array: Array) -> Array:
    """In 32 bits, modulo 2^32."""
    return array.astype(np.int64).astype(np.int32)


def combined_scale(scales: Sequence[Array]) -> Array:
    """The product of f32 scales, in f32."""
    return np.asarray(math.prod(scales[1:], start=scales[0]), np.float32)
