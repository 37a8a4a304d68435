"""
The versions of a function: one for each way in which its callers lay out the buffers that they pass.

A function that others call with contiguous buffers only keeps contiguous memrefs. A buffer that some caller takes
out of a larger one comes as `strided<[...], offset: ?>`; callers whose strides are the same share a version, and
cast to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import (
    FunctionType,
    MemRefType,
    ModuleOp,
    StridedLayoutAttr,
    StringAttr,
    SymbolRefAttr,
    TensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import calls_itself
from penstock.dialects.mem import static_strides
from penstock.passes.analysis.strides import contiguous_strides
from penstock.passes.tensor.bufferization.placement import Layouts

Strides = tuple[tuple[int, ...] | None, ...]
"""For each buffer, its strides in elements; None for one that is contiguous, and for what is no buffer."""


@dataclass
class Version:
    """A function as some of its callers need it."""

    callee: str
    strides: Strides
    """Of the arguments, then of the results that are tensors."""
    calls: list[func.CallOp] = field(default_factory=list[func.CallOp])
    callers: list[Sequence[SSAValue]] = field(default_factory=list[Sequence[SSAValue]])

    def layouts(self, type: FunctionType) -> Layouts:
        """The layouts of the tensors of a function of this type."""
        count = len(type.inputs)
        of_results = iter(self.strides[count:])
        results = tuple(next(of_results) if isa(t, TensorType) else None for t in type.outputs)
        return Layouts(self.strides[:count], results)

    def types(self, contiguous: Sequence[Attribute]) -> list[Attribute]:
        """The types of arguments and out arguments, given those that they have when all is contiguous."""
        types = list(contiguous)
        for position, (type, strides) in enumerate(zip(types, self.strides, strict=True)):
            if not isa(type, MemRefType):
                continue
            offsets = [_offset(operands[position]) for operands in self.callers]
            if strides is not None or any(offset != 0 for offset in offsets):
                layout = StridedLayoutAttr(strides or contiguous_strides(type.get_shape()), None)
                types[position] = MemRefType(type.element_type, type.shape, layout)
        return types


def _offset(value: SSAValue) -> int | None:
    assert isa(value.type, MemRefType)
    return value.type.get_offset()


def strides_of(values: Sequence[SSAValue]) -> Strides:
    """The strides of the buffers among `values`, None where they are contiguous."""
    strides: list[tuple[int, ...] | None] = []
    for value in values:
        if isa(value.type, MemRefType):
            own = static_strides(value.type)
            strides.append(None if own == contiguous_strides(value.type.get_shape()) else own)
        else:
            strides.append(None)
    return tuple(strides)


class Versions:
    """The versions of the functions of a module, found as callers are rebuilt."""

    def __init__(self, module: ModuleOp):
        self._versions: dict[tuple[str, Strides], Version] = {}
        names = (op.get_attr_or_prop("sym_name") for op in module.ops)
        self._symbols = {name.data for name in names if isinstance(name, StringAttr)}

    def require(self, callee: str, strides: Strides) -> Version:
        """The version of `callee` for these strides, made if it is new."""
        return self._versions.setdefault((callee, strides), Version(callee, strides))

    def require_contiguous(self, function: func.FuncOp) -> None:
        """Ask for the version of `function` whose buffers are all contiguous."""
        type = function.function_type
        results = sum(isa(output, TensorType) for output in type.outputs)
        self.require(function.sym_name.data, (None,) * (len(type.inputs) + results))

    def add_call(self, callee: str, operands: Sequence[SSAValue], call: func.CallOp) -> None:
        """Note a call of `callee` with these arguments and buffers for results."""
        version = self.require(callee, strides_of(operands))
        version.calls.append(call)
        version.callers.append(operands)

    def of(self, callee: str) -> list[Version]:
        """The versions of `callee`, in the order in which they were asked for."""
        return [version for version in self._versions.values() if version.callee == callee]

    def fresh_name(self, name: str) -> str:
        """`name` or `name_1`, `name_2`, ...: a symbol that the module does not have yet."""
        candidate, count = name, 0
        while candidate in self._symbols:
            count += 1
            candidate = f"{name}_{count}"
        self._symbols.add(candidate)
        return candidate


def bind_calls(version: Version, name: str, types: Sequence[Attribute]) -> None:
    """Let the calls of a version call the function `name`, whose operands have `types`."""
    for call in version.calls:
        call.properties["callee"] = SymbolRefAttr(name)
        for index, (operand, type) in enumerate(zip(call.operands, types, strict=True)):
            if operand.type != type:
                cast = memref.CastOp.get(operand, type)  # pyright: ignore[reportArgumentType]
                cast.location = call.location
                cast.dest.name_hint = operand.name_hint
                Rewriter.insert_op(cast, InsertPoint.before(call))
                call.operands[index] = cast.dest


def callers_first(functions: Sequence[func.FuncOp]) -> list[func.FuncOp]:
    """The functions in an order in which each comes after all that call it; raises UserError for recursion."""
    by_name = {function.sym_name.data: function for function in functions}
    ordered: list[func.FuncOp] = []
    state: dict[str, str] = {}

    def visit(function: func.FuncOp, site: Operation) -> None:
        name = function.sym_name.data
        if state.get(name) == "open":
            raise calls_itself(name, site)
        if name in state:
            return
        state[name] = "open"
        for op in function.walk():
            if isinstance(op, func.CallOp) and (callee := by_name.get(op.callee.string_value())) is not None:
                visit(callee, op)
        state[name] = "done"
        ordered.append(function)

    for function in reversed(functions):
        visit(function, function)
    return ordered[::-1]
