# SPDX-License-Identifier: Apache-2.0
"""Give sizes to symbolic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.functions import BOUNDS, NAME, SIZES, attribute_text, bounds_of, set_bounds_of
from penstock.dialects.graph import FusedOp, GraphOp, IfOp, LoopOp, YieldOp
from penstock.dialects.graph.base import erased, is_static, set_type
from penstock.dialects.graph.dims import DIMS, checked_sizes, dims_of, names_attr
from penstock.dialects.graph.shape import ToShapeOp

Attributes: TypeAlias = ArrayAttr[DictionaryAttr]
Locator: TypeAlias = Callable[[Operation], "str | Attribute | None"]


def symbolic_dims(function: FuncOp) -> dict[str, list[str]]:
    """
    The names of the unbound dimensions of a function, each with its occurrences, `dimension 0 of x`.

    Raises UserError for attributes that do not fit the types.
    """
    found: dict[str, list[str]] = {}
    try:
        dims = dims_of(function)
    except VerifyException as error:
        raise UserError(f"the attribute {DIMS} does not fit: {error}", loc=location_of(function)) from None
    for index, names in enumerate(dims):
        owner = attribute_text(function, index, NAME)
        text = f"input {index}" if owner is None else f'"{owner}"'
        for dim, name in enumerate(names):
            if name:
                found.setdefault(name, []).append(f"dimension {dim} of {text}")
    return found


def _functions(module: ModuleOp) -> Iterator[FuncOp]:
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and not op.is_declaration:
            yield op


@dataclass
class _Binding:
    """Binds the dimensions of one function."""

    sizes: Mapping[str, int]
    known: Collection[str]
    locate: Locator

    def run(self, function: FuncOp) -> None:
        block = function.body.block
        for argument, names in zip(list(block.args), dims_of(function), strict=True):
            set_type(argument, self._bound(argument, names))
        self._block(block)
        arguments, results = dims_of(function), dims_of(function, results=True)
        function.update_function_type()
        self._drop_bounds(function)
        function.arg_attrs = self._attributes(function.arg_attrs, arguments)
        function.res_attrs = self._attributes(function.res_attrs, results)

    def _drop_bounds(self, function: FuncOp) -> None:
        """A size that is bound is not one that only a run knows."""
        left = {name: most for name, most in bounds_of(function).items() if name not in self.sizes}
        for name in (SIZES, BOUNDS):
            function.attributes.pop(name, None)
        if left:
            set_bounds_of(function, left)

    def _bound(self, value: SSAValue, names: list[str]) -> Attribute:
        if not isa(value.type, TensorType):
            return value.type
        sizes = zip(value.type.get_shape(), names, strict=True)
        return TensorType(value.type.element_type, [self.sizes.get(name, size) for size, name in sizes])

    def _attributes(self, old: Attributes | None, dims: list[list[str]]) -> Attributes | None:
        """The attributes of arguments or results with the names that are left; None if nothing is."""
        if old is None:
            return None
        entries: list[DictionaryAttr] = []
        for entry, names in zip(old, dims, strict=True):
            left = ["" if name in self.sizes else name for name in names]
            kept = {key: names_attr(left) if key == DIMS else value for key, value in entry.data.items()}
            if not any(left):
                kept.pop(DIMS, None)
            entries.append(DictionaryAttr(kept))
        return ArrayAttr(entries) if any(entry.data for entry in entries) else None

    def _block(self, block: Block) -> None:
        for op in list(block.ops):
            try:
                self._op(op)
            except VerifyException as error:
                words = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
                raise UserError(f"{op.name}: {error}", loc=self.locate(op), notes=[f"with {words}"]) from None

    def _op(self, op: Operation) -> None:
        match op:
            case GraphOp():
                if isinstance(op, ToShapeOp) and (others := [n for n in op.names() if n and n not in self.known]):
                    raise VerifyException(f'no argument has a dimension called "{others[0]}"')
                op.rebind(self.sizes)
                if op.is_identity():
                    op.result.replace_all_uses_with(op.operands[0])
                    Rewriter.erase_op(op)
            case FusedOp() | IfOp() | LoopOp():
                for region in op.regions:
                    for argument, type in zip(list(region.block.args), op.argument_types(), strict=True):
                        set_type(argument, type)
                    self._block(region.block)
                for result, type in zip(list(op.results), op.infer_types(), strict=True):
                    set_type(result, erased(type) if isa(type, TensorType) else type)
            case ReturnOp() | YieldOp():
                return
            case _:
                if not all(is_static(value.type) for value in (*op.operands, *op.results)):
                    raise VerifyException("its shapes cannot be inferred: bind the dimensions at graph level")


@dataclass(frozen=True)
class BindDimsPass(ModulePass):
    """
    Give sizes to symbolic dimensions of arguments, and infer every type that follows from them.

    `names` and `sizes` go together: `bind-dims{names="N","T" sizes=4,16}`. A dimension is named by the attribute
    `graph.dims` of its argument; one that has no name there is called `ARGUMENT.AXIS`, as in `"x.0"`. Every
    dimension of one name gets the one size, and the name is gone from the text. Dimensions that are not named stay
    symbolic. A reshape or slice that becomes the identity is removed: the result is the text that importing the
    model with these sizes gives, but for constants of a named shape, which an import with the sizes computes and
    this leaves to `fold-constants`.

    Requires graph level. Raises UserError: for a name that no argument has, a size below 1, and, located at the op,
    for sizes with which an op is invalid.

    Before:
    ```mlir
    func.func @main(%x: tensor<?x2x4xf32> {graph.dims = ["N", "", ""]}) -> (tensor<?xf32> {graph.dims = ["N"]}) {
      %r = graph.relu %x : tensor<?x2x4xf32>
      %f = graph.reshape %r : tensor<?x2x4xf32> -> tensor<?x8xf32>
      %y = graph.reduce_sum %f axes [1] keepdims false : tensor<?x8xf32> -> tensor<?xf32>
      func.return %y : tensor<?xf32>
    }
    ```
    After (`bind-dims{names="N" sizes=3}`):
    ```mlir
    func.func @main(%x: tensor<3x2x4xf32>) -> (tensor<3xf32>) {
      %r = graph.relu %x : tensor<3x2x4xf32>
      %f = graph.reshape %r : tensor<3x2x4xf32> -> tensor<3x8xf32>
      %y = graph.reduce_sum %f axes [1] keepdims false : tensor<3x8xf32> -> tensor<3xf32>
      func.return %y : tensor<3xf32>
    }
    ```
    """

    name = "bind-dims"

    names: tuple[str, ...] = ()
    """The dimensions, by name."""
    sizes: tuple[int, ...] = ()
    """The size of each of them."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if len(self.names) != len(self.sizes):
            raise UserError(f"bind-dims has {len(self.names)} names and {len(self.sizes)} sizes")
        sizes: dict[str, int] = {}
        for name, size in zip(self.names, self.sizes, strict=True):
            if sizes.setdefault(name, size) != size:
                raise UserError(f'the dimension "{name}" is bound twice, to {sizes[name]} and to {size}')
        bind_dims(op, sizes)


def bind_dims(module: ModuleOp, sizes: Mapping[str, int], locate: Locator = location_of) -> None:
    """As the pass, which documents it; `locate` says where a fault of an op is reported."""
    sizes = checked_sizes(sizes)
    symbols = {function: symbolic_dims(function) for function in _functions(module)}
    known = list(dict.fromkeys(name for names in symbols.values() for name in names))
    for name in sizes:
        if name not in known:
            there = ", ".join(f'"{each}"' for each in known) or "none: all shapes are static"
            near = did_you_mean(name, known)
            raise UserError(f'there is no symbolic dimension "{name}"', notes=[near or f"symbolic dimensions: {there}"])
    for function, names in symbols.items():
        if any(name in sizes for name in names):
            _Binding(sizes, names, locate).run(function)
