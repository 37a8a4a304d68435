# SPDX-License-Identifier: Apache-2.0
"""The reductions of the kernel language: their names, and which call is one."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, SSAValue

from penstock.lowering.accumulation import MAX, MIN, PRODUCT, SUM, Reduction
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Numbers, number_of
from penstock.lowering.from_kernel.scalars import Operand, Scalars, require_element
from penstock.lowering.from_kernel.syntax import Binding, Call, Function, Name, Node, Reducer
from penstock.passes.scalar_body import Body


def _or(body: Body, a: SSAValue, b: SSAValue) -> SSAValue:
    return body.emit(arith.OrIOp(a, b))


def _and(body: Body, a: SSAValue, b: SSAValue) -> SSAValue:
    return body.emit(arith.AndIOp(a, b))


REDUCTIONS: Mapping[str, Reduction] = {
    "sum": SUM,
    "prod": PRODUCT,
    "max": MAX,
    "min": MIN,
    "any": Reduction(lambda element, unsigned: 0, _or, is_exact=True),
    "all": Reduction(lambda element, unsigned: 1, _and, is_exact=True),
}
"""What combines elements of one type."""
PLACES = {"argmax": MAX, "argmin": MIN}
"""What gives the index of an element, the first of equal ones."""
_ALSO_SCALAR = ("max", "min")
OF_BOOLS = ("any", "all")


def is_reduction(node: Call, reducers: Mapping[str, Reducer], is_free: Mapping[str, bool] | None = None) -> bool:
    """
    Whether a call is a reduction; `max` and `min` are one over the indices that stand before their last argument, and
    of the one tensor that they are given. `is_free` has the names of the arguments that stand for nothing yet.
    """
    if node.function in _ALSO_SCALAR:
        first = node.arguments[0] if node.arguments else None
        is_index = isinstance(first, Name) and (is_free or {}).get(first.name, False)
        return len(node.arguments) == 1 or isinstance(first, Binding) or is_index
    return node.function in REDUCTIONS or node.function in PLACES or node.function in reducers


def reduction_of(reducer: Reducer, element: Attribute, functions: Mapping[str, Function]) -> Reduction:
    """A reducer of one's own on elements of a type. Raises Fault for what is not of that type."""
    numbers: Numbers = {}
    identity = number_of(reducer.identity, numbers)
    if identity is None:
        raise Fault("the identity of a reducer must be a number", reducer.identity)
    require_element(identity, element, reducer.identity)
    names = Name(reducer.left), Name(reducer.right)
    read: dict[Node, Operand] = {name: Operand(element) for name in names}
    types = Scalars(read, numbers, functions)
    found = types.type_of(reducer.value)
    if found is not None and found != element:
        raise Fault(f"the reducer makes {found} of {element}", reducer.value)

    def step(body: Body, accumulator: SSAValue, term: SSAValue) -> SSAValue:
        # A sum of a narrow type is computed in that of the accumulator.
        known = term.type if isinstance(element, AnyFloat) else element
        values: dict[Node, Operand] = {
            name: Operand(known, value) for name, value in zip(names, (accumulator, term), strict=True)
        }
        return Scalars(values, numbers, functions).emit(body, reducer.value, known)

    return Reduction(lambda element, unsigned: identity, step)
