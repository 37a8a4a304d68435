# SPDX-License-Identifier: Apache-2.0
"""The operators of examples/operators beside NumPy, at sizes of which the last divides nothing."""

from __future__ import annotations

import pytest
from operator_cases import OperatorCase
from reference import OPERATORS, Operator
from sampling import sweep

from penstock.runtime.engine import compile_program


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_an_operator_is_what_it_is_in_numpy(operator: Operator) -> None:
    case = OperatorCase(operator, len(operator.sizes) - 1)
    case.compare(compile_program(case.program(), backend="interpreter").run(case.arguments))


@pytest.mark.parametrize("machine", sweep((None, "gemmini-fp32", "rapid-core-like"), ()))
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_an_operator_compiled_is_what_it_is_in_numpy(operator: Operator, machine: str | None) -> None:
    for number in range(len(operator.sizes)):
        case = OperatorCase(operator, number)
        case.compare(compile_program(case.program(), machine=machine).run(case.arguments))
