"""Types of tensors and of arrays, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.graph.base import Tensor
from penstock.dialects.weights import Array


def dtype_of(element: Attribute) -> np.dtype[Any]:
    """
    The NumPy type in which an element type is computed: i1 is bool, signless integers are signed.

    Raises UserError (unsupported) for a type that NumPy has not.
    """
    try:
        return numpy_dtype(element)
    except ValueError as error:
        raise UserError(f"cannot be interpreted: {error}", status=UNSUPPORTED) from None


def tensor_type_of(array: Array) -> Tensor:
    """The tensor type of an array; raises UserError (unsupported) if its elements have none."""
    try:
        return TensorType(element_type(array.dtype), array.shape)
    except ValueError as error:
        raise UserError(str(error), status=UNSUPPORTED) from None
