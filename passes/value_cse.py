# SPDX-License-Identifier: Apache-2.0
"""Compute what is computed twice once: graph ops, constants with equal contents, and ops on tensors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from xdsl.context import Context
from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import IsolatedFromAbove, SymbolTable

from penstock.dialects import graph
from penstock.dialects.context import PenstockContext
from penstock.dialects.files import release
from penstock.dialects.graph import ConstantOp, WeightAttr
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.analysis.effects import Effects, is_destination
from penstock.passes.analysis.kernels import DEVICE
from penstock.passes.analysis.memory.stated_scopes import is_explicit
from penstock.passes.isomorphic_kernels import structure_of

Key: TypeAlias = Hashable

_COMMUTATIVE = (graph.AddOp, graph.MulOp, graph.AndOp, graph.OrOp, graph.EqualOp)
"""Ops with the same bits for swapped operands; of the zeros 0.0 and -0.0, which one is larger is the first's affair."""

_SAMPLED_ELEMENTS = 64


@dataclass
class _Weights:
    """Which weights have the same contents; data is only read of those that agree in some of their elements."""

    store: WeightStore | None
    _first: dict[Key, str] = field(default_factory=dict[Key, str])
    _names: dict[str, str] = field(default_factory=dict[str, str])
    _collided: set[Key] = field(default_factory=set[Key])

    def name(self, weight: str) -> str:
        """The first name under which the contents of a weight were seen."""
        if weight not in self._names:
            self._names[weight] = weight if self.store is None else self._find(self.store, weight)
        return self._names[weight]

    def _find(self, store: WeightStore, weight: str) -> str:
        array = store[weight]
        sample: Key = (*_kind(array), _bytes(array.reshape(-1)[:: max(1, array.size // _SAMPLED_ELEMENTS)]))
        release(array)
        first = self._first.setdefault(sample, weight)
        if first == weight:
            return weight
        if sample not in self._collided:
            self._collided.add(sample)
            self._first[(*_kind(array), _digest(store[first]))] = first
        return self._first.setdefault((*_kind(array), _digest(array)), weight)


def _kind(array: Array) -> tuple[Hashable, ...]:
    return array.shape, array.dtype.str, array.dtype.name


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _digest(array: Array) -> bytes:
    digest = blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()
    release(array)
    return digest


class _Functions:
    """Which functions do the same on the same device."""

    def __init__(self, module: ModuleOp):
        self._by_name = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp)}
        self._names: dict[str, str] = {}
        self._first: dict[Key, str] = {}

    def name(self, callee: str) -> str:
        """The first name under which one was called that does the same."""
        if callee not in self._names:
            function = self._by_name[callee]
            body, _ = structure_of(function.body, names=False, located=False)
            self._names[callee] = self._first.setdefault((function.attributes.get(DEVICE), body), callee)
        return self._names[callee]


@dataclass
class _Elimination:
    """One walk over the module: the ops that are known at the place where it is, by what they compute."""

    effects: Effects
    weights: _Weights
    functions: _Functions
    known: dict[Key, list[Operation]] = field(default_factory=dict[Key, list[Operation]])
    numbers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])

    def visit(self, region: Region) -> None:
        """Visit a region; what it defines is known in its blocks alone, and in those inside them."""
        for block in region.blocks:
            added: list[Key] = []
            for op in list(block.ops):
                self._visit_regions(op)
                if isinstance(op, tensor.EmptyOp) or is_explicit(op) or not self.effects.is_pure(op):
                    continue
                if any(_is_overwritten(result) for result in op.results):
                    continue
                key = self._key(op)
                equal = self.known.setdefault(key, [])
                first = next((each for each in equal if _same_regions(each, op)), None)
                if first is None:
                    equal.append(op)
                    added.append(key)
                else:
                    Rewriter.replace_op(op, [], first.results)
            for key in reversed(added):
                self.known[key].pop()

    def _visit_regions(self, op: Operation) -> None:
        outside = self.known
        if op.has_trait(IsolatedFromAbove):
            self.known = {}
        for region in op.regions:
            self.visit(region)
        self.known = outside

    def _number(self, value: SSAValue) -> Key:
        owner = value.owner
        if isinstance(owner, tensor.EmptyOp):
            # They are not distinguishable, but each is to be overwritten by one op only: they are not merged.
            return (owner.tensor.type, *(self._number(size) for size in owner.dynamic_sizes))
        return self.numbers.setdefault(value, len(self.numbers))

    def _key(self, op: Operation) -> Key:
        operands: Key = tuple(self._number(operand) for operand in op.operands)
        if isinstance(op, _COMMUTATIVE):
            operands = frozenset(self._number(operand) for operand in op.operands)
        properties: dict[str, Attribute] = op.properties
        if isinstance(op, ConstantOp) and (weight := op.weight) is not None:
            properties = properties | {"value": WeightAttr(self.weights.name(weight))}
        if isinstance(op, func.CallOp):
            properties = properties | {"callee": SymbolRefAttr(self.functions.name(op.callee.string_value()))}
        attributes = (frozenset(op.attributes.items()), frozenset(properties.items()))
        return (op.name, operands, tuple(op.result_types), *attributes)


def _is_overwritten(value: SSAValue) -> bool:
    uses = value.uses if isinstance(value.type, TensorType) else ()
    return any(is_destination(use.operation, use.index) for use in uses)


def _same_regions(left: Operation, right: Operation) -> bool:
    return all(a.is_structurally_equivalent(b) for a, b in zip(left.regions, right.regions, strict=True))


@dataclass(frozen=True)
class ValueCsePass(ModulePass):
    """
    Merge ops that compute the same value: the later one is replaced by the earlier one, where it can be seen.

    As `cse`, and beyond it: it knows that `linalg` ops, loops and calls on tensors have no effects (see `Effects`),
    that weights of equal bytes are equal whatever they are called, that a sum is the same from either side, that
    functions with the same body on the same device are equal, and that a `tensor.empty`, or whatever an op overwrites,
    is a place: one for each writer. A private function that is called no more goes. What has effects, works on memory,
    or is explicit (`mem.explicit`, as what is computed again on purpose) is left alone.
    Takes time linear in the module, but for reading equal weights.
    Guarantees the level that it was given; locations are those of the ops that stay.

    Before:
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = tensor.empty() : tensor<4xf32>
      %1 = linalg.generic {
        indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
      } ins(%x : tensor<4xf32>) outs(%0 : tensor<4xf32>) {
      ^bb0(%a: f32, %b: f32):
        %c = arith.mulf %a, %a : f32
        linalg.yield %c : f32
      } -> tensor<4xf32>
      %2 = tensor.empty() : tensor<4xf32>
      %3 = linalg.generic {
        indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
      } ins(%x : tensor<4xf32>) outs(%2 : tensor<4xf32>) {
      ^bb0(%a: f32, %b: f32):
        %c = arith.mulf %a, %a : f32
        linalg.yield %c : f32
      } -> tensor<4xf32>
      %y = graph.add %1, %3 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```
    After (`value-cse`):
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = tensor.empty() : tensor<4xf32>
      %1 = linalg.generic {
        indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
      } ins(%x : tensor<4xf32>) outs(%0 : tensor<4xf32>) {
      ^bb0(%a: f32, %b: f32):
        %c = arith.mulf %a, %a : f32
        linalg.yield %c : f32
      } -> tensor<4xf32>
      %2 = tensor.empty() : tensor<4xf32>
      %y = graph.add %1, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```
    """

    name = "value-cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store = ctx.weights if isinstance(ctx, PenstockContext) else None
        before = _called(op)
        _Elimination(Effects(op), _Weights(store), _Functions(op)).visit(op.body)
        for name in before - _called(op):
            function = SymbolTable.lookup_symbol(op, name)
            if isinstance(function, func.FuncOp) and not _is_public(function):
                Rewriter.erase_op(function)


def _called(module: ModuleOp) -> set[str]:
    return {op.callee.string_value() for op in module.walk() if isinstance(op, func.CallOp)}


def _is_public(function: func.FuncOp) -> bool:
    return function.sym_visibility is None or function.sym_visibility.data != "private"
