# SPDX-License-Identifier: Apache-2.0
"""Types of arrays."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute

from penstock.dialects.element_types import element_type


def tensor_type_of(array: NDArray[Any]) -> TensorType[Attribute]:
    """The tensor type of an array."""
    return TensorType(element_type(array.dtype), array.shape)
