"""Elementwise ops between element types, which have no formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.dialects.element_types import is_narrow_integer
from penstock.dialects.graph import BitcastOp, CastOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.graph.tensor_types import dtype_of


@implements(CastOp)
def cast(op: CastOp, operands: Sequence[Array]) -> Array:
    """The elements in another type: floats truncate to integers, integers wrap, not 0 is true."""
    x, dtype = operands[0], dtype_of(op.result_type.element_type)
    if 1 not in (x.dtype.isbuiltin, dtype.isbuiltin) and x.dtype != dtype:
        # Between types of other packages, which do not all know each other: through one that holds both exactly.
        x = x.astype(np.int8 if is_narrow_integer(x.dtype) else np.float32)
    return x.astype(dtype)


@implements(BitcastOp)
def bitcast(op: BitcastOp, operands: Sequence[Array]) -> Array:
    """The same bits; of a byte that becomes a truth value, whether one is set."""
    x, dtype = operands[0], dtype_of(op.result_type.element_type)
    return x.view(np.uint8) != 0 if dtype == np.bool_ else np.ascontiguousarray(x).view(dtype).reshape(x.shape)
