# SPDX-License-Identifier: Apache-2.0
"""
Derivatives of branches and of loops whose number of iterations is known.

The adjoint of a branch is a branch of adjoints. The adjoint of a loop goes the other way: it carries the adjoints of
what the loop carries, and the sums of those of what every iteration reads. It needs what each iteration began with,
which the loop gives as lines of its own; the rest is computed anew in the iteration. See Griewank and Walther,
"Evaluating Derivatives", 2008, chapter 12, of the store of all states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Attribute, Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float
from penstock.passes.graph.gradients.code import AdjointCode, active_values, gradient, refuse
from penstock.passes.graph.simplification.control import rebuilt_control, replace_control
from penstock.passes.graph.terms import Term


def lift_weights(block: Block, names: Sequence[object]) -> None:
    """Read the weights of these names, which are to be differentiated by, outside the branches and loops of a block."""
    for op in list(block.ops):
        if not isinstance(op, graph.IfOp | graph.LoopOp):
            continue
        lifted: dict[str, graph.ConstantOp] = {}
        places: list[graph.ConstantOp] = []
        for region in op.regions:
            lift_weights(region.block, names)
            places += [each for each in region.block.ops if isinstance(each, graph.ConstantOp) and each.weight in names]
        for each in places:
            lifted.setdefault(str(each.weight), each)
        if not lifted:
            continue
        copies = {name: each.clone() for name, each in lifted.items()}
        for region in op.regions:
            for name, copy in copies.items():
                argument = region.block.insert_arg(copy.result.type, len(region.block.args))
                for each in places:
                    if each.weight == name and each.parent is region.block:
                        each.result.replace_all_uses_with(argument)
                        Rewriter.erase_op(each)
        inputs = [*op.inputs, *(copy.result for copy in copies.values())]
        made = rebuilt_control(op, inputs, op.inits if isinstance(op, graph.LoopOp) else ())
        replace_control(op, [*copies.values(), made], made.outputs)


def _adjoints(
    code: AdjointCode,
    block: Block,
    source: Block,
    arguments: Sequence[SSAValue],
    wanted: Sequence[int],
    seeds: dict[int, SSAValue],
) -> tuple[AdjointCode, list[Term]]:
    """
    The adjoints of the arguments `wanted` of the region `source`, which is computed anew in `block` on `arguments`, and
    the code that has them.

    `seeds` are the adjoints of what it yields, by number.
    """
    values: dict[SSAValue, SSAValue] = dict(zip(source.args, arguments, strict=True))
    last = source.last_op
    assert isinstance(last, graph.YieldOp)
    ops = [op.clone(values) for op in source.ops if op is not last]
    block.add_ops(ops)
    targets = [arguments[number] for number in wanted]
    yielded = [values[value] for value in last.values]
    inner = code.inside(block, active_values(ops, targets, [yielded[number] for number in seeds]))
    for number, seed in seeds.items():
        inner.add_seed(yielded[number], seed)
    for op in reversed(ops):
        inner.differentiate(op)
    return inner, [inner.adjoint_of(target) or inner.zeros(target) for target in targets]


@gradient(graph.IfOp)
def branch(code: AdjointCode, op: graph.IfOp) -> None:
    """The adjoints that the branch gives which was taken."""
    wanted = [number for number, value in enumerate(op.inputs) if code.wants(value)]
    seeds = {number: found for number, value in enumerate(op.outputs) if (found := code.adjoint_of(value)) is not None}
    given = [*op.inputs, *(seed.value for seed in seeds.values())]
    blocks: list[Block] = []
    for region in op.regions:
        block = Block(arg_types=[value.type for value in given])
        arguments, adjoints = block.args[: len(op.inputs)], block.args[len(op.inputs) :]
        _, found = _adjoints(code, block, region.block, arguments, wanted, dict(zip(seeds, adjoints, strict=True)))
        block.add_op(graph.YieldOp(*(each.value for each in found)))
        blocks.append(block)
    types = [op.inputs[number].type for number in wanted]
    made = graph.IfOp(op.condition, given, blocks[0], blocks[1], types)
    for number, adjoint in zip(wanted, code.append(made), strict=True):
        code.add(op.inputs[number], lambda adjoint=adjoint: adjoint)


@gradient(graph.LoopOp)
def loop(code: AdjointCode, op: graph.LoopOp) -> None:
    """The loop of the adjoints, from the last iteration to the first."""
    if not op.is_counted:
        refuse(op, "whose trip count a run decides")
    carries = len(op.inits)
    carried = [number for number, value in enumerate(op.inits) if is_float(tensor_of(value).element_type)]
    sliced = [number for number, value in enumerate(op.slices) if code.wants(value)]
    read = [number for number, value in enumerate(op.inputs) if code.wants(value)]
    finals = [code.adjoint_of(op.outputs[number]) or code.zeros(op.outputs[number]) for number in carried]
    sums = [code.zeros(op.inputs[number]) for number in read]
    found = {number: code.adjoint_of(op.outputs[number]) for number in range(carries, len(op.outputs))}
    seeds = {number: seed.value for number, seed in found.items() if seed is not None}
    op = _with_states(op)
    source = op.body.block
    first_line, first_input = 1 + carries, 1 + carries + len(op.slices)
    # The first argument of the region is the number of the iteration.
    wanted = [*(1 + n for n in carried), *(first_line + n for n in sliced), *(first_input + n for n in read)]

    block = Block()

    def given(types: Iterable[Attribute]) -> list[SSAValue]:
        return [block.insert_arg(type, len(block.args)) for type in types]

    index = given([source.args[0].type])
    adjoints = given(each.value.type for each in finals)
    sums_before = given(each.value.type for each in sums)
    state_and_lines = given(argument.type for argument in source.args[1:first_input])
    of_lines = given(op.terminator.values[number].type for number in seeds)
    inputs = given(value.type for value in op.inputs)
    arguments = [*index, *state_and_lines, *inputs]
    at = dict(zip(carried, adjoints, strict=True)) | dict(zip(seeds, of_lines, strict=True))
    inner, found_inside = _adjoints(code, block, source, arguments, wanted, at)
    count, through = len(carried), len(carried) + len(sliced)
    total = [inner.term(sum_) + each for sum_, each in zip(sums_before, found_inside[through:], strict=True)]
    block.add_op(graph.YieldOp(*(each.value for each in (*found_inside[:count], *total, *found_inside[count:through]))))
    made = graph.LoopOp(
        [each.value for each in (*finals, *sums)],
        [*op.outputs[len(op.outputs) - carries :], *op.slices, *seeds.values()],
        op.inputs,
        block,
        trips=op.most,
        reverse=op.reverse is None,
    )
    results = code.append(made)
    targets = [op.inits[n] for n in carried] + [op.inputs[n] for n in read] + [op.slices[n] for n in sliced]
    for value, adjoint in zip(targets, results, strict=True):
        code.add(value, lambda adjoint=adjoint: adjoint)


def _with_states(op: graph.LoopOp) -> graph.LoopOp:
    """The loop, in the place of `op`, with what is carried into each iteration as its last lines."""
    block, last = op.body.block, op.terminator
    Rewriter.replace_op(last, graph.YieldOp(*last.values, *block.args[1 : 1 + len(op.inits)]))
    op.body.detach_block(block)
    made = graph.LoopOp(op.inits, op.slices, op.inputs, block, trips=op.most, reverse=op.reverse is not None)
    made.location = op.location
    made.attributes.update(op.attributes)
    for old, new in zip(op.outputs, made.outputs, strict=False):
        new.name_hint = old.name_hint
    Rewriter.insert_op(made, InsertPoint.before(op))
    Rewriter.replace_op(op, [], made.outputs[: len(op.outputs)])
    return made
