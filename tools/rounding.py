# SPDX-License-Identifier: Apache-2.0
"""
By how much the outputs of a program may differ that sums in another order, or stores values in a narrower type.

Another order is held to the probabilistic bound of Higham and Mary, "A New Approach to Probabilistic Rounding Error
Analysis" (2019): c * sqrt(K) * eps * max|y|, with K the number of terms summed along the whole program. Each place that
narrows rounds by half the eps of the narrower type, u, independently of the others: the bound is
8 * sqrt(sum of u^2 over these places) * max|y|. Later passes that may round have it as well, as they can tip a rounding
that stands.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation
from xdsl.utils.hints import isa

from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import CastOp

Array = NDArray[Any]

CONFIDENCE = 16.0
"""The constant c of the bound; about ten standard deviations of the rounding of independent sums."""
NARROWING_CONFIDENCE = 8.0
"""The same for values that are stored in a narrower type; a single rounding deviates by u / sqrt(3)."""
NARROW_TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
"""What a pass may narrow to."""
MAX_EXACT = 1 << 24
"""Integers up to here, and their sums, are exact in f32."""


def rounding_bound(values: Array, terms: float, narrowings: float) -> float:
    """What may change of an output: `terms` are `summed_terms`, `narrowings` what `squared_narrowings` finds."""
    if values.dtype.kind not in "fV" or not values.size:
        return 0.0
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    largest = float(finite.max()) if finite.size else 0.0
    sums = math.sqrt(terms) * epsilon(values.dtype)
    return math.hypot(CONFIDENCE * sums, NARROWING_CONFIDENCE * math.sqrt(narrowings)) * largest


def is_integral(array: Array) -> bool:
    """Whether an array holds only integers whose sums are exact."""
    if array.dtype.kind in "biu":
        return True
    values = np.asarray(array, dtype=np.float64)
    return bool(np.all(np.isfinite(values) & (values == np.rint(values)) & (np.abs(values) < MAX_EXACT)))


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of a float type."""
    return float(ml_dtypes.finfo(dtype).eps)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def summed_terms(module: ModuleOp) -> float:
    """
    An estimate of the number of terms summed along the program: the sum over its operations of the length of the
    reduction, which for a product of two tensors is the root of |a| |b| / |y|, and for one tensor |a| / |y|.
    """
    return 1.0 + sum(_reductions(module))


def _reductions(module: ModuleOp) -> Iterator[float]:
    for op in _program(module):
        if isinstance(op, GenericOp):
            iterations = math.prod(op.get_static_loop_ranges())
            results = [_elements(value.type) for value in op.outputs]
            yield iterations / max([1, *results])
            continue
        if len(op.results) != 1:
            continue
        sizes = sorted((_elements(operand.type) for operand in op.operands), reverse=True)
        result = _elements(op.results[0].type)
        if result and sizes and sizes[0] > 1:
            pair = math.sqrt(sizes[0] * sizes[1] / result) if len(sizes) > 1 else 0.0
            yield max(sizes[0] / result, pair)


def _elements(type: Attribute) -> int:
    if not isa(type, TensorType | MemRefType) or not type.has_static_shape():
        return 0
    return math.prod(type.get_shape())


def squared_narrowings(module: ModuleOp) -> float:
    """
    The sum over all places where the program rounds floats to a narrower type of the square of the relative error
    of one such rounding, half the epsilon of that type. A kernel counts once for each call of it.
    """
    calls = Counter(op.callee.string_value() for op in _program(module) if isinstance(op, CallOp))
    total = 0.0
    for function in _functions(module):
        here = sum(0.25 * epsilon(numpy_dtype(type)) ** 2 for op in function.walk() if (type := _narrowed_to(op)))
        total += here * max(1, calls[function.sym_name.data])
    return total


def _narrowed_to(op: Operation) -> AnyFloat | None:
    """The element type to which `op` rounds floats, if it does."""
    if not isinstance(op, CastOp | arith.TruncFOp):
        return None
    source, target = _element(op.operands[0].type), _element(op.results[0].type)
    if not isinstance(source, AnyFloat) or not isinstance(target, AnyFloat):
        return None
    return target if target.bitwidth < source.bitwidth else None


def _element(type: Attribute) -> Attribute:
    return type.element_type if isa(type, TensorType) else type


def exact_in(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether the float type `dtype` holds every number of an array; arrays of other than floats do not matter."""
    if array.dtype.kind not in "fV":
        return True
    with np.errstate(over="ignore"):
        return np.array_equal(array.astype(dtype).astype(array.dtype), array, equal_nan=True)


def _functions(module: ModuleOp) -> list[FuncOp]:
    # A machine's intrinsics are no part of the program, and have dims without a size.
    return [op for op in module.body.block.ops if isinstance(op, FuncOp)]


def _program(module: ModuleOp) -> Iterator[Operation]:
    for function in _functions(module):
        yield from function.walk()
