# SPDX-License-Identifier: Apache-2.0
"""What handles stand for: ops of the `transform` dialect that find operations and change none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import transform
from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.scf import ForOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, render_location, some_of
from penstock.dialects.upstream.transform import (
    CastHandleOp,
    GeneralizeOp,
    GetConsumersOfResultOp,
    GetDefiningOp,
    GetOperandOp,
    GetParentOp,
    GetProducerOfOperandOp,
    GetResultOp,
    MergeHandlesOp,
    ParamConstantOp,
    SplitHandleOp,
)
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState, of_kind

_INTERFACES: dict[str, tuple[type[Operation], ...]] = {
    "LinalgOp": (GenericOp,),
    "TilingInterface": (GenericOp,),
    "LoopLikeInterface": (ForOp,),
}


@PRIMITIVES.register(transform.MatchOp)
def match(state: TransformState, op: transform.MatchOp) -> Sequence[Payload]:
    """The operations in another one of given names, interface and attributes, in program order."""
    if op.filter_result_type is not None or op.filter_operand_types is not None:
        raise UserError("transform.structured.match does not filter by types here", notes=["match names or attributes"])
    root = state.one(op.target)
    names = None if op.ops is None else {name.data for name in op.ops}
    kinds = None
    if op.interface is not None:
        kinds = _INTERFACES[transform.MATCH_INTERFACES[op.interface.value.data].value]
    wanted: Mapping[str, Attribute] = {} if op.op_attrs is None else op.op_attrs.data
    found = [
        each
        for each in root.walk(region_first=True)
        if (names is None or each.name in names)
        and (kinds is None or isinstance(each, kinds))
        and all((each.properties | each.attributes).get(name) == attr for name, attr in wanted.items())
        and each is not root
    ]
    if not found and (names is not None or kinds is not None):
        what = " or ".join(sorted(names)) if names is not None else "operation of this interface"
        here = sorted({each.name for each in root.walk() if each is not root})
        raise UserError(
            f"the match finds nothing: there is no {what} here" + " with these attributes" * bool(wanted),
            notes=[f"there are {', '.join(here)}"],
        )
    return (tuple(found),)


@PRIMITIVES.register(SplitHandleOp)
def split_handle(state: TransformState, op: SplitHandleOp) -> Sequence[Payload]:
    """A handle for each operation."""
    payload = state.payload(op.handle)
    if len(payload) != len(op.results):
        found = some_of([_described(each) for each in payload])
        raise UserError(
            f"{len(op.results)} operations are meant, and the handle stands for {len(payload)}",
            notes=[
                *(["it stands for " + ", ".join(found)] if found else []),
                "is this the schedule of another kernel, of another version of it, or for another machine? Without "
                "ops, this section and those after it are left to the compiler",
            ],
        )
    return [(each,) for each in payload]


def _described(op: Operation) -> str:
    """An operation of the kernel: its name, that of its result, and where it comes from, as far as they are known."""
    named = next((f"%{value.name_hint}" for value in op.results if value.name_hint), "")
    place = render_location(op.location)
    return " ".join([op.name, *([named] if named else []), *([f"at {place}"] if place else [])])


@PRIMITIVES.register(GetParentOp)
def get_parent_op(state: TransformState, op: GetParentOp) -> Sequence[Payload]:
    """The operation around one: the nth of that name."""
    found: list[Operation] = []
    for each in state.payload(op.target):
        current: Operation | None = each
        for _ in range(op.nth_parent.value.data if op.nth_parent is not None else 1):
            current = current.parent_op() if current is not None else None
            while current is not None and not _is_meant(current, op):
                current = current.parent_op()
        if current is None and op.allow_empty_results is not None:
            continue
        if current is None:
            raise UserError(f"there is no such {op.op_name.data if op.op_name else 'operation'} around {each.name}")
        if op.deduplicate is None or current not in found:
            found.append(current)
    return (tuple(found),)


def _is_meant(around: Operation, op: GetParentOp) -> bool:
    """Whether an operation is one that `op` counts."""
    if op.isolated_from_above is not None and not around.has_trait(IsolatedFromAbove):
        return False
    return op.op_name is None or around.name == op.op_name.data


@PRIMITIVES.register(GetProducerOfOperandOp)
def get_producer_of_operand(state: TransformState, op: GetProducerOfOperandOp) -> Sequence[Payload]:
    """The operations that compute an operand."""
    number = op.operand_number.value.data
    return (
        tuple(_owner(_value_at(each.operands, number, each, "operand"), each) for each in state.payload(op.target)),
    )


def _value_at(values: Sequence[SSAValue], number: int, op: Operation, what: str) -> SSAValue:
    if not 0 <= number < len(values):
        raise UserError(f"{op.name} has {len(values)} {what}s: there is no {what} {number}")
    return values[number]


def _owner(value: SSAValue, user: Operation) -> Operation:
    owner = value.owner
    if not isinstance(owner, Operation):
        number = list(user.operands).index(value)
        raise UserError(f"operand {number} of {user.name} is an argument: no operation computes it")
    return owner


@PRIMITIVES.register(GetOperandOp)
def get_operand(state: TransformState, op: GetOperandOp) -> Sequence[Payload]:
    """Operands of operations, kept as what computes them; raises UserError for an argument."""
    numbers = op.raw_position_list.get_values()
    payload = state.payload(op.target)
    return (tuple(_owner(_value_at(each.operands, n, each, "operand"), each) for each in payload for n in numbers),)


@PRIMITIVES.register(GetResultOp)
def get_result(state: TransformState, op: GetResultOp) -> Sequence[Payload]:
    """Results of operations, kept as these."""
    numbers = op.raw_position_list.get_values()
    payload = state.payload(op.target)
    found = [(each, _value_at(each.results, number, each, "result")) for each in payload for number in numbers]
    return (tuple(each for each, _ in found),)


@PRIMITIVES.register(GetDefiningOp)
def get_defining_op(state: TransformState, op: GetDefiningOp) -> Sequence[Payload]:
    """The operations that compute values."""
    return (state.payload(op.target),)


@PRIMITIVES.register(GetConsumersOfResultOp)
def get_consumers_of_result(state: TransformState, op: GetConsumersOfResultOp) -> Sequence[Payload]:
    """The operations that read a result, in program order."""
    target, number = state.one(op.target), op.result_number.value.data
    users = {use.operation for use in _value_at(target.results, number, target, "result").uses}
    return (tuple(each for each in state.kernel.walk() if each in users),)


@PRIMITIVES.register(GeneralizeOp)
def generalize(state: TransformState, op: GeneralizeOp) -> Sequence[Payload]:
    """The same operations: every structured op is a `linalg.generic`; raises UserError for what is none."""
    return (tuple(of_kind(target, GenericOp) for target in state.payload(op.target)),)


@PRIMITIVES.register(MergeHandlesOp)
def merge_handles(state: TransformState, op: MergeHandlesOp) -> Sequence[Payload]:
    """One handle for the operations of several."""
    found = [each for handle in op.handles for each in state.payload(handle)]
    return (tuple(dict.fromkeys(found) if op.deduplicate is not None else found),)


@PRIMITIVES.register(transform.SelectOp)
def select(state: TransformState, op: transform.SelectOp) -> Sequence[Payload]:
    """The operations of one name, of those that a handle stands for."""
    return (tuple(each for each in state.payload(op.target) if each.name == op.op_name.data),)


@PRIMITIVES.register(CastHandleOp)
def cast(state: TransformState, op: CastHandleOp) -> Sequence[Payload]:
    """The same operations, which have to be of the name that the type of the result says."""
    payload, type = state.payload(op.input), op.output.type
    wrong = [each for each in payload if isinstance(type, transform.OperationType) and each.name != type.operation.data]
    if wrong:
        raise UserError(f"the handle stands for {wrong[0].name}, which is not of the type {type}")
    return (payload,)


@PRIMITIVES.register(ParamConstantOp)
def param_constant(state: TransformState, op: ParamConstantOp) -> Sequence[int]:
    """A number."""
    if not isa(op.value, IntegerAttr):
        raise UserError(f"a parameter of a schedule is an integer, not {op.value}")
    return (op.value.value.data,)
