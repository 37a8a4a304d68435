# SPDX-License-Identifier: Apache-2.0
"""`tensor-to-loop`: bufferization in destination-passing style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FunctionType,
    MemRefType,
    ModuleOp,
    StridedLayoutAttr,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    UnitAttr,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, calls_itself, location_of
from penstock.dialects.functions import NAME, OUTPUT, unique_name
from penstock.dialects.locations import location_of_value
from penstock.dialects.mem import static_strides
from penstock.lowering.tensor_to_loop.rebuild import Rebuild, memref_like, memref_types
from penstock.passes.analysis.strides import contiguous_strides
from penstock.passes.tensor.bufferization.assignment import Layouts
from penstock.passes.tensor.bufferization.destinations import pass_destinations, uses_tensors

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
        self._versions: dict[str, dict[Strides, Version]] = {}
        names = (op.get_attr_or_prop("sym_name") for op in module.ops)
        self._symbols = {name.data for name in names if isinstance(name, StringAttr)}

    def require(self, callee: str, strides: Strides) -> Version:
        """The version of `callee` for these strides, made if it is new."""
        return self._versions.setdefault(callee, {}).setdefault(strides, Version(callee, strides))

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
        return list(self._versions.get(callee, {}).values())

    def fresh_name(self, name: str) -> str:
        """`name` or `name_1`, `name_2`, ...: a symbol that the module does not have yet."""
        return unique_name(name, self._symbols)


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


class _Globals:
    """The constants of a module as `memref.global`s, one for each value."""

    def __init__(self, module: ModuleOp, versions: Versions):
        self._module = module
        self._versions = versions
        self._made: dict[DenseIntOrFPElementsAttr, memref.GlobalOp] = {}

    def read(self, value: DenseIntOrFPElementsAttr) -> memref.GetGlobalOp:
        type = memref_like(value.type)
        if (made := self._made.get(value)) is None:
            name = StringAttr(self._versions.fresh_name(f"constant_{len(self._made)}"))
            made = memref.GlobalOp.get(name, type, value, constant=UnitAttr())
            self._made[value] = made
            body = self._module.body.block
            Rewriter.insert_op(made, InsertPoint.at_start(body))
        return memref.GetGlobalOp(made.sym_name.data, type)


def _is_public(function: func.FuncOp) -> bool:
    return function.sym_visibility is None or function.sym_visibility.data != "private"


def _refuse_declared(module: ModuleOp) -> None:
    for op in module.ops:
        if isinstance(op, func.FuncOp) and op.is_declaration:
            types = (*op.function_type.inputs, *op.function_type.outputs)
            if any(isinstance(type, TensorType) for type in types):
                raise UserError(
                    f"@{op.sym_name.data} is only declared: how it takes tensors is not known",
                    loc=location_of(op),
                    notes=["define it in the module, or declare it on memrefs"],
                    status=UNSUPPORTED,
                )


def _lower_version(
    function: func.FuncOp,
    version: Version,
    name: str,
    visibility: StringAttr | None,
    versions: Versions,
    shared: _Globals,
) -> tuple[func.FuncOp, list[Attribute]]:
    """The function on memrefs for one version, and the types of its arguments and out arguments."""
    inputs, outputs = list(function.function_type.inputs), list(function.function_type.outputs)
    tensors = [index for index, type in enumerate(outputs) if isinstance(type, TensorType)]
    arguments = version.types(memref_types((*inputs, *(outputs[index] for index in tensors))))
    assignment = pass_destinations(function, version.layouts(function.function_type))

    block = Block(arg_types=arguments)
    old = function.body.block
    for argument, built in zip(old.args, block.args, strict=False):
        built.name_hint, built.location = argument.name_hint, argument.location
    outs = dict(zip(tensors, block.args[len(inputs) :], strict=True))
    for index, out in outs.items():
        returned = function.get_return_op()
        value = returned.arguments[index] if returned is not None else None
        out.name_hint = (value.name_hint if value is not None else None) or "out"
        out.location = function.location if value is None else location_of_value(value)
    scalars = [type for type in outputs if not isinstance(type, TensorType)]
    built = func.FuncOp(name, FunctionType.from_lists(arguments, scalars), Region(block), visibility)
    built.attributes.update(function.attributes)
    built.location = function.location
    _name_arguments(function, built, tensors)
    Rebuild(assignment, block, block.args[: len(inputs)], outs, versions.add_call, shared.read)
    return built, arguments


def _name_arguments(old: func.FuncOp, new: func.FuncOp, tensors: Sequence[int]) -> None:
    """Give the arguments their attributes; a result's go to its out argument, its name as `graph.output`."""
    inputs, outputs = old.function_type.inputs.data, old.function_type.outputs.data
    of_arguments = list(old.arg_attrs) if old.arg_attrs is not None else [DictionaryAttr({}) for _ in inputs]
    of_results = list(old.res_attrs) if old.res_attrs is not None else [DictionaryAttr({}) for _ in outputs]
    for index in tensors:
        given = dict(of_results[index].data)
        name = given.pop(NAME, StringAttr(f"output_{index}") if _is_public(new) else None)
        if name is not None:
            given[OUTPUT] = name
        of_arguments.append(DictionaryAttr(given))
    kept = [attributes for index, attributes in enumerate(of_results) if index not in tensors]
    if any(attributes.data for attributes in of_arguments):
        new.arg_attrs = ArrayAttr(of_arguments)
    if any(attributes.data for attributes in kept):
        new.res_attrs = ArrayAttr(kept)


@dataclass(frozen=True)
class TensorToLoopPass(ModulePass):
    """
    Lower functions on tensors to functions on off-chip memrefs that write their results where the caller says.

    Every tensor becomes a `memref` without a scope; every tensor result becomes a trailing out argument, which on a
    public function carries `graph.output`. Whatever can be done in place is, after `insert-copies`, which this pass
    runs first: `outs` and loop-carried tensors are updated where they are, slices and reshapes are views, and the
    producer of a part of a concatenation or of a returned value writes straight into the whole (not so on a machine,
    where tiles are computed in a scope). What is left of an insertion is `mem.copy`; a box of a `tensor.pad` is a
    `mem.copy` of a window with `else`. A function called with buffers of different strides becomes several. An operand
    of which only the shape is used, the window of a pooling, becomes a view with (dynamic) strides 0 of another
    operand. An explicit copy becomes a `mem.copy`, and what a tensor says of where it
    is to live (`mem.scope`) its allocation says. Constant tensors become `memref.global`s.

    Required: the tensor level, static shapes. Guaranteed: no tensors. Raises UserError, located, for ops that
    have no form on memrefs, for recursion and for functions on tensors that are only declared.

    Before:
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32> {graph.name = "y"}) {
      %e = tensor.empty() : tensor<4xf32>
      %y = linalg.generic {
        indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
      } ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %sum = arith.addf %in, %in : f32
        linalg.yield %sum : f32
      } -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```
    After (`tensor-to-loop`):
    ```mlir
    func.func @main(%x: memref<4xf32>, %y: memref<4xf32> {graph.output = "y"}) {
      linalg.generic {
        indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]
      } ins(%x : memref<4xf32>) outs(%y : memref<4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %sum = arith.addf %in, %in : f32
        linalg.yield %sum : f32
      }
      func.return
    }
    ```
    """

    name = "tensor-to-loop"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _refuse_declared(op)
        functions = [f for f in op.ops if isinstance(f, func.FuncOp) and uses_tensors(f)]
        versions = Versions(op)
        shared = _Globals(op, versions)
        called = {call.callee.string_value() for call in op.walk() if isinstance(call, func.CallOp)}
        for function in callers_first(functions):
            name = function.sym_name.data
            if _is_public(function) or name not in called:
                versions.require_contiguous(function)
            last: Operation = function
            for number, version in enumerate(_contiguous_first(versions.of(name), _is_public(function))):
                tensors = function if number + 1 == len(versions.of(name)) else function.clone()
                own = name if number == 0 else versions.fresh_name(name)
                visibility = function.sym_visibility if number == 0 else StringAttr("private")
                built, types = _lower_version(tensors, version, own, visibility, versions, shared)
                bind_calls(version, own, types)
                Rewriter.insert_op(built, InsertPoint.after(last))
                last = built
            Rewriter.erase_op(function)


def _contiguous_first(versions: list[Version], public: bool) -> list[Version]:
    """A public function keeps its name for the version that callers from outside use."""
    if not public:
        return versions
    return sorted(versions, key=lambda version: any(strides is not None for strides in version.strides))
