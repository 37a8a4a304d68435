# SPDX-License-Identifier: Apache-2.0
"""
Ways to change a program for delta debugging: each takes something away, and may leave what is no valid program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard, TypeVar, cast

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    NoneAttr,
    TensorType,
)
from xdsl.dialects.func import FuncOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, BlockArgument, Operation, Use
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator, SymbolTable
from xdsl.utils.hints import isa

from penstock.dialects.functions import OUTPUT, attribute_text
from penstock.dialects.mem import CopyOp

T = TypeVar("T")

Change = Callable[[], None]
Edit = Callable[[Operation], Sequence[Change]]
"""The ways to change an op, of which each may leave what is no valid program."""


def places(module: ModuleOp, edit: Edit) -> list[tuple[Operation, int]]:
    """Each op with the number of each way to change it; a machine stays or goes as a whole."""
    ops = [op for each in module.ops for op in (each.walk() if isinstance(each, FuncOp) else [each])]
    return [(op, number) for op in ops for number in range(len(edit(op)))]


def change(edit: Edit, op: Operation, number: int) -> bool:
    """Change an op, unless changes of other ops have taken that way away."""
    changes = edit(op) if op.parent is not None else ()
    if number < len(changes):
        changes[number]()
    return number < len(changes)


def drop_result(op: Operation) -> Sequence[Change]:
    """@main returns one value less, but never none."""
    function = op.parent_op()
    if not isinstance(op, func.ReturnOp) or not _is_main(function) or len(op.operands) < 2:
        return ()

    def drop(number: int) -> None:
        op.operands = _without(op.operands, number)
        if function.res_attrs is not None:
            function.res_attrs = ArrayAttr(_without(function.res_attrs.data, number))
        function.update_function_type()

    return [partial(drop, number) for number in range(len(op.operands))]


def keep_to_itself(op: Operation) -> Sequence[Change]:
    """What @main writes to an output it writes to memory of its own, but never all of its outputs."""
    if not _is_main(op) or len(op.body.blocks) != 1:
        return ()
    block = op.body.block
    outputs = [each for each in block.args if attribute_text(op, each.index, OUTPUT) is not None]

    def keep(argument: BlockArgument) -> None:
        assert isa(argument.type, MemRefType)
        local = memref.AllocOp([], [], argument.type)
        block.insert_ops_before([local], block.ops.first) if block.ops.first else block.add_op(local)
        argument.replace_all_uses_with(local.memref)
        _erase_argument(op, argument)
        op.update_function_type()

    return [partial(keep, each) for each in outputs] if len(outputs) > 1 else ()


def return_instead(op: Operation) -> Sequence[Change]:
    """@main returns what the op computes, and nothing else."""
    function = op.parent_op()
    if not _is_main(function) or not op.results or not isa(op.results[0].type, TensorType):
        return ()
    last = function.body.block.last_op
    if not isinstance(last, func.ReturnOp) or not last.operands or last.operands[0] is op.results[0]:
        return ()

    def give() -> None:
        last.operands = [op.results[0]]
        function.res_attrs = None
        function.update_function_type()

    return [give]


def make_input(op: Operation) -> Sequence[Change]:
    """What the op computes, or what is written to the memory that it makes, is given to @main."""
    function = op.parent_op()
    if not _is_main(function) or not op.results:
        return ()
    if not all(_may_be_input(result.type) for result in op.results):
        return ()

    def take() -> None:
        for result in op.results:
            for writer in [use.operation for use in result.uses if _is_written(use)]:
                Rewriter.erase_op(writer)
            result.replace_all_uses_with(function.body.block.insert_arg(result.type, 0))
            if function.arg_attrs is not None:
                function.arg_attrs = ArrayAttr([DictionaryAttr({}), *function.arg_attrs.data])
        Rewriter.erase_op(op)
        function.update_function_type()

    return [take]


def erase(op: Operation) -> Sequence[Change]:
    """The op goes; what used its results uses an operand, or an argument of the block, of the same type."""
    block = op.parent
    if isinstance(op, FuncOp) or op.has_trait(IsTerminator) or block is None:
        return ()
    used = [result for result in op.results if result.uses]
    others = [[each for each in (*op.operands, *block.args) if each.type == result.type] for result in used]

    def replace(number: int) -> None:
        for result, values in zip(used, others, strict=True):
            result.replace_all_uses_with(values[min(number, len(values) - 1)])
        Rewriter.erase_op(op)

    ways = max(map(len, others), default=1) if all(others) else 0
    return [partial(replace, number) for number in range(ways)]


def make_zero(op: Operation) -> Sequence[Change]:
    """A scalar becomes 0."""
    if len(op.results) != 1 or isinstance(op, arith.ConstantOp) or op.parent is None:
        return ()
    type = op.results[0].type
    if isinstance(type, AnyFloat):
        zero = arith.ConstantOp(FloatAttr(0.0, type))
    elif isinstance(type, IntegerType):
        zero = arith.ConstantOp(IntegerAttr(0, cast(IntegerType, type)))
    elif isinstance(type, IndexType):
        zero = arith.ConstantOp(IntegerAttr(0, type))
    else:
        return ()
    return [lambda: Rewriter.replace_op(op, zero)]


def inline(op: Operation) -> Sequence[Change]:
    """A call becomes what it calls."""
    if not isinstance(op, func.CallOp):
        return ()
    callee = SymbolTable.lookup_symbol(op, op.callee)
    if not isinstance(callee, FuncOp) or len(callee.body.blocks) != 1:
        return ()

    def replace() -> None:
        body = callee.body.clone().block
        last = body.last_op
        assert last is not None
        results = list(last.operands)
        Rewriter.erase_op(last)
        values = [op.operands[each.index] if isinstance(each, BlockArgument) else each for each in results]
        Rewriter.inline_block(body, InsertPoint.before(op), op.operands)
        Rewriter.replace_op(op, [], values)

    return [replace]


def one_iteration(op: Operation) -> Sequence[Change]:
    """A loop becomes its first iteration."""
    if not isinstance(op, scf.ForOp):
        return ()

    def unroll() -> None:
        body = op.body.block
        last = body.last_op
        assert last is not None
        given = (op.lb, *op.iter_args)
        results = [given[v.index] if isinstance(v, BlockArgument) and v.owner is body else v for v in last.operands]
        Rewriter.erase_op(last)
        Rewriter.inline_block(body, InsertPoint.before(op), given)
        Rewriter.replace_op(op, [], results)

    return [unroll]


EDITS: tuple[Edit, ...] = (
    drop_result,
    keep_to_itself,
    return_instead,
    make_input,
    erase,
    make_zero,
    inline,
    one_iteration,
)
"""Those that take most away first."""


def _may_be_input(type: Attribute) -> bool:
    """Tensors, and memory off chip that is dense."""
    if isa(type, MemRefType):
        return isinstance(type.layout, NoneAttr) and isinstance(type.memory_space, NoneAttr)
    return isa(type, TensorType)


def _is_written(use: Use) -> bool:
    op = use.operation
    if op.results or not isinstance(op, GenericOp | CopyOp | memref.CopyOp):
        return False
    destinations = op.outputs if isinstance(op, GenericOp) else [op.dest if isinstance(op, CopyOp) else op.destination]
    return any(op.operands[use.index] is each for each in destinations)


def _is_main(op: Operation | None) -> TypeGuard[FuncOp]:
    return isinstance(op, FuncOp) and op.sym_name.data == "main"


def _without(items: Sequence[T], number: int) -> list[T]:
    return [*items[:number], *items[number + 1 :]]


def drop_unused_inputs(function: FuncOp) -> None:
    """Take the arguments away that the body does not use and that are no outputs."""
    block = function.body.block
    for argument in reversed(block.args):
        if not argument.uses and attribute_text(function, argument.index, OUTPUT) is None:
            _erase_argument(function, argument)
    function.update_function_type()


def _erase_argument(function: FuncOp, argument: BlockArgument) -> None:
    if function.arg_attrs is not None:
        function.arg_attrs = ArrayAttr(_without(function.arg_attrs.data, argument.index))
    argument.block.erase_arg(argument)
