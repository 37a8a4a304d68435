# SPDX-License-Identifier: Apache-2.0
"""From the tensor level to the loop level: bufferization in destination-passing style."""

from penstock.lowering.tensor_to_loop.lower import TensorToLoopPass

__all__ = ["TensorToLoopPass"]
