"""The importer of Einsum."""

from __future__ import annotations

import functools

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import accumulator_of
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.accumulation import cast
from penstock.lowering.from_onnx.node import Node, imports


@imports("Einsum")
def einsum(node: Node) -> SSAValue:
    """Each operand brought to all letters, multiplied, and summed over the letters that the result lacks."""
    equation = node.string("equation", "").replace(" ", "")
    given, arrow, wanted = equation.partition("->")
    terms = given.split(",")
    require(len(terms) == len(node.inputs), f'"{equation}" is about {len(terms)} operands, not {len(node.inputs)}')
    values = [_lettered(node, index, term) for index, term in enumerate(terms)]
    names = [letters for _, letters in values]
    if not arrow:
        seen = "".join(given.replace(",", "").replace(".", ""))
        wanted = "".join(sorted(letter for letter in set(seen) if seen.count(letter) == 1))
        wanted = "..." + wanted
    batch = max((sum(name.isdigit() for name in letters) for letters in names), default=0)
    result = _letters(wanted, batch)
    order = list(dict.fromkeys([*result, *(name for letters in names for name in letters)]))
    if len(values) == 2 and (product := _as_matmul(node, values, result)) is not None:
        return product
    element, axes = node.type(0).element_type, [index for index, name in enumerate(order) if name not in result]
    # One product alone is rounded once in any case, and what is only transposed not at all.
    wide = accumulator_of(element) if axes or len(values) > 2 else element
    first, *others = (cast(node, _spread(node, value, letters, order), wide) for value, letters in values)
    total = functools.reduce(lambda a, b: node.emit(graph.MulOp(a, b)), others, first)
    if axes:
        total = node.emit(graph.ReduceSumOp(total, axes=axes, keepdims=False))
    return cast(node, total, element)


def _letters(term: str, batch: int) -> list[str]:
    """The names of the dimensions of a term; those of an ellipsis are numbers, which count from its end."""
    before, dots, after = term.partition("...")
    return [*before, *(str(number) for number in reversed(range(batch if dots else 0))), *after]


def _lettered(node: Node, index: int, term: str) -> tuple[SSAValue, list[str]]:
    """An operand and the names of its dimensions, no two alike: of two alike, the diagonal is taken."""
    value, rank = node.value(index), len(node.shape(index))
    letters = _letters(term, rank - len(term.replace("...", "")))
    require(len(letters) == rank, f'"{term}" for an operand of {rank} dimensions')
    for name in dict.fromkeys(letters):
        while letters.count(name) > 1:
            first = letters.index(name)
            second = letters.index(name, first + 1)
            size = tensor_of(value).get_shape()[first]
            eye = np.eye(size, dtype=np.bool_).reshape(
                [size if d in (first, second) else 1 for d in range(len(letters))]
            )
            masked = node.emit(graph.WhereOp(node.constant(eye, "diagonal"), value, node.scalar(0, value)))
            value = node.emit(graph.ReduceSumOp(masked, axes=[second], keepdims=False))
            del letters[second]
    return value, letters


def _spread(node: Node, value: SSAValue, letters: list[str], order: list[str]) -> SSAValue:
    """A value with its dimensions in the given order, and sizes of 1 for those that it lacks."""
    perm = sorted(range(len(letters)), key=lambda dim: order.index(letters[dim]))
    if perm != list(range(len(perm))):
        value = node.emit(graph.TransposeOp(value, perm=perm))
    sizes = dict(zip((letters[dim] for dim in perm), tensor_of(value).get_shape(), strict=True))
    shape = [sizes.get(name, 1) for name in order]
    return node.emit(graph.ReshapeOp(value, shape)) if len(shape) != len(perm) else value


def _as_matmul(node: Node, values: list[tuple[SSAValue, list[str]]], result: list[str]) -> SSAValue | None:
    """A product of matrices, if each operand has one letter of its own and they share one that is summed."""
    (a, left), (b, right) = values
    shared = [name for name in left if name in right and name not in result]
    own = [[name for name in one if name not in other] for one, other in ((left, right), (right, left))]
    if len(shared) != 1 or any(len(each) != 1 or each[0] not in result for each in own):
        return None
    batch = [name for name in result if name not in (own[0][0], own[1][0])]
    if any(name not in left or name not in right for name in batch):
        return None
    first = _spread(node, a, left, [*batch, own[0][0], shared[0]])
    second = _spread(node, b, right, [*batch, shared[0], own[1][0]])
    product = node.emit(graph.MatmulOp(first, second))
    found = [*batch, own[0][0], own[1][0]]
    return product if found == result else _spread(node, product, found, result)
