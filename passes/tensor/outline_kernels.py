# SPDX-License-Identifier: Apache-2.0
"""What `@main` computes itself becomes kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.functions import unique_name
from penstock.passes.analysis.kernels import ENTRY, has_reduction
from penstock.passes.analysis.memory.stated_scopes import is_explicit

_FEEDS = (arith.ConstantOp, tensor.EmptyOp, tensor.PadOp)
"""What a kernel has itself of what it reads."""


def _only_initialises(op: Operation) -> bool:
    """Whether a generic only gives others the value that they begin with."""
    return (
        isinstance(op, GenericOp)
        and not has_reduction(op)
        and bool(op.results[0].uses)
        and all(
            isinstance(use.operation, GenericOp) and use.index >= len(use.operation.inputs)
            for result in op.results
            for use in result.uses
        )
    )


def _groups(block: Block) -> list[list[GenericOp]]:
    """Each op, with the pointwise ones after it that alone read what is computed, place by place."""
    groups: list[list[GenericOp]] = []
    group_of: dict[Operation, int] = {}
    for op in block.ops:
        if not isinstance(op, GenericOp) or _only_initialises(op):
            continue
        # What it reads is there when the last of the groups is done that compute it.
        owners = [v.owner for v in op.operands if isinstance(v.owner, Operation)]
        home = max((group_of[o] for o in owners if o in group_of), default=None)
        if home is None or not _continues(op, groups[home][-1]):
            home = len(groups)
            groups.append([])
        groups[home].append(op)
        group_of[op] = home
    return groups


def _continues(op: GenericOp, producer: GenericOp) -> bool:
    """Whether `op` reads, place by place, all that `producer` computes, and nobody else does."""
    if has_reduction(op) or len(producer.results) != 1 or len(op.results) != 1 or op.parent is not producer.parent:
        return False
    uses = [use for use in producer.results[0].uses if use.operation is not op or use.index >= len(op.inputs)]
    same = producer.results[0] in op.inputs and _shape(producer) == _shape(op)
    return same and not uses


def _shape(op: GenericOp) -> Sequence[int]:
    type = op.results[0].type
    assert isa(type, TensorType)
    return type.get_shape()


def _closure(group: Sequence[GenericOp]) -> list[Operation]:
    """The ops of a group, with what they alone need to have themselves, in program order."""
    block, needed, pending = group[0].parent, set[Operation](), list[Operation](group)
    assert block is not None
    while pending:
        if (op := pending.pop()) in needed:
            continue
        needed.add(op)
        owners = {v.owner for inner in op.walk() for v in inner.operands if isinstance(v.owner, Operation)}
        pending += [
            each for each in owners if each.parent is block and (isinstance(each, _FEEDS) or _only_initialises(each))
        ]
    return [op for op in block.ops if op in needed]


def _outline(group: Sequence[GenericOp], name: str) -> func.FuncOp:
    """The function that a group becomes; a call of it stands where the last op of the group did."""
    inside, last = _closure(group), group[-1]
    made = {result for op in inside for inner in op.walk() for result in inner.results}
    made |= {arg for op in inside for inner in op.walk() for r in inner.regions for b in r.blocks for arg in b.args}
    read = dict.fromkeys(v for op in inside for inner in op.walk() for v in inner.operands if v not in made)
    block = Block(arg_types=[value.type for value in read])
    known: dict[SSAValue, SSAValue] = dict(zip(read, block.args, strict=True))
    for value, arg in zip(read, block.args, strict=True):
        arg.name_hint = value.name_hint
    for op in inside:
        copy = op.clone(known)
        copy.location = op.location
        block.add_op(copy)
    block.add_op(func.ReturnOp(*(known[result] for result in last.results)))
    types = ([value.type for value in read], [result.type for result in last.results])
    kernel = func.FuncOp(name, types, Region(block), visibility="private")
    kernel.location = last.location
    call = func.CallOp(name, list(read), types[1])
    call.location = last.location
    for old, new in zip(last.results, call.results, strict=True):
        new.name_hint = old.name_hint
    Rewriter.insert_op(call, InsertPoint.before(last))
    for old, new in zip(last.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    for op in reversed(inside):
        if op in group or not any(result.uses for result in op.results):
            Rewriter.erase_op(op)
    return kernel


@dataclass(frozen=True)
class OutlineKernelsPass(ModulePass):
    """
    Let `@main` call kernels for what it computes: each `linalg.generic` with the pointwise ones after it.

    Requires the tensor level. Guarantees, where `@main` is one block of generics, views and what feeds them: it holds
    calls, views and constants. A kernel is a private function `@kernel_N`; a pointwise op is in that of the op before
    it, if nothing else reads what that computes. What only initialises others, pads and empties are in each kernel that
    needs them. A `@main` that has loops or branches, or says itself where its tensors live, stays as it is.

    Before:
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
      %e = tensor.empty() : tensor<8xf32>
      %z = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
          ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
      ^bb0(%a: f32, %b: f32, %out: f32):
        %s = arith.addf %a, %b : f32
        linalg.yield %s : f32
      } -> tensor<8xf32>
      func.return %z : tensor<8xf32>
    }
    ```
    After (`outline-kernels`):
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
      %z = func.call @kernel_0(%x, %y) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      func.return %z : tensor<8xf32>
    }
    func.func private @kernel_0(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
      %e = tensor.empty() : tensor<8xf32>
      %z = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
          ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
      ^bb0(%a: f32, %b: f32, %out: f32):
        %s = arith.addf %a, %b : f32
        linalg.yield %s : f32
      } -> tensor<8xf32>
      func.return %z : tensor<8xf32>
    }
    ```
    """

    name = "outline-kernels"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = [each for each in op.ops if isinstance(each, func.FuncOp)]
        main = next((each for each in functions if each.sym_name.data == ENTRY), None)
        if main is None or len(main.body.blocks) != 1:
            return
        block = main.body.block
        if any(each.name.startswith(("scf.", "mem.")) for each in block.ops):
            return
        generics = [each for each in block.ops if isinstance(each, GenericOp)]
        if any(is_explicit(each) or not all(isa(r.type, TensorType) for r in each.results) for each in generics):
            return
        taken, after = {each.sym_name.data for each in functions}, main
        for group in _groups(block):
            kernel = _outline(group, unique_name(f"kernel_{len(taken) - len(functions)}", taken))
            Rewriter.insert_op(kernel, InsertPoint.after(after))
            after = kernel
