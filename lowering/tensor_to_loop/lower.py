"""`tensor-to-loop`: bufferization in destination-passing style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
)
from xdsl.ir import Attribute, Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.lowering.tensor_to_loop.rebuild import Rebuild
from penstock.lowering.tensor_to_loop.versions import Version, Versions, bind_calls, callers_first
from penstock.lowering.tensor_to_loop.views import memref_like, memref_types
from penstock.passes.tensor.bufferization.destinations import pass_destinations, uses_tensors

NAME = "graph.name"
"""Attribute of a result of a function on tensors: the name that the model gives it."""
OUTPUT = "graph.output"
"""Attribute of the argument that takes that result: the same name."""


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
    placement = pass_destinations(function, version.layouts(function.function_type))

    block = Block(arg_types=arguments)
    old = function.body.block
    for argument, built in zip(old.args, block.args, strict=False):
        built.name_hint = argument.name_hint
    outs = dict(zip(tensors, block.args[len(inputs) :], strict=True))
    for index, out in outs.items():
        returned = function.get_return_op()
        hint = returned.arguments[index].name_hint if returned is not None else None
        out.name_hint = hint or "out"
    scalars = [type for type in outputs if not isinstance(type, TensorType)]
    built = func.FuncOp(name, FunctionType.from_lists(arguments, scalars), Region(block), visibility)
    built.attributes.update(function.attributes)
    built.location = function.location
    _name_arguments(function, built, tensors)
    Rebuild(placement, block, block.args[: len(inputs)], outs, versions.add_call, shared.read)
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

    Every tensor becomes a `memref` without a scope; every tensor result becomes a trailing out argument, which
    on a public function carries `graph.output`. Whatever can be done in place is, after `insert-copies`, which
    this pass runs first: `outs` and loop-carried tensors are updated where they are, slices and reshapes are
    views, and the producer of a part of a concatenation or of a returned value writes straight into the whole
    (not so on a machine, where tiles are computed in a scope). What is left of an insertion is `mem.copy`; a
    box of a `tensor.pad` is a `mem.copy` of a window with `else`. A function called with buffers of different
    strides becomes several. An operand of which only the shape is used, the window of a pooling, becomes a
    view with (dynamic) strides 0 of another operand. Constant tensors become `memref.global`s.

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
