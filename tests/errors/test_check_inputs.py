# SPDX-License-Identifier: Apache-2.0
"""What is said of a check of a program whose inputs cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.dialects.diagnostics import UserError
from penstock.runtime.tensor_specs import Signature, TensorSpec
from penstock.tools.lockstep import default_inputs


def test_no_values_are_drawn_for_a_size_that_only_a_run_knows() -> None:
    spec = TensorSpec("x", (-1, 6), np.dtype(np.float32), ("N", ""))
    with pytest.raises(UserError, match='input "x", Nx6: only a run knows its size'):
        default_inputs(Signature((spec,), ()))
