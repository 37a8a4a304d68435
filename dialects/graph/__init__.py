# SPDX-License-Identifier: Apache-2.0
"""
The graph dialect: operators with the semantics of ONNX on tensors.

Names and properties are those of ONNX in snake_case (https://onnx.ai/onnx/operators/). Every op can infer
its result type, verifies it, has no effects, and states how it may be fused (`PatternKind`). A size that is
not known yet is `?`; below this level all sizes are numbers.
"""

# ruff: noqa: F403, F405  The ops are named once, where they are declared.

from __future__ import annotations

from xdsl.ir import Dialect, Operation

from penstock.dialects.graph.base import *
from penstock.dialects.graph.constant import *
from penstock.dialects.graph.elementwise import *
from penstock.dialects.graph.group import *
from penstock.dialects.graph.indexing import *
from penstock.dialects.graph.kernel import *
from penstock.dialects.graph.layout import *
from penstock.dialects.graph.nn import *
from penstock.dialects.graph.quantization import *
from penstock.dialects.graph.reduction import *
from penstock.dialects.graph.shape import *
from penstock.dialects.graph.window import *


def _is_op(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Operation) and "name" in vars(found)


OPS = tuple(sorted((each for each in globals().values() if _is_op(each)), key=lambda op_class: op_class.__name__))
"""Every op of the dialect."""

Graph = Dialect("graph", list(OPS), [PatternAttr, WeightAttr])
