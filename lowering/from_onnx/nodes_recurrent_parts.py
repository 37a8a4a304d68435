"""
What the recurrent operators are made of: names for the ops on the way, weights cut to size, activations.

ONNX stacks the weights of all gates and directions in one tensor and multiplies by their transposes. What is constant
is cut and transposed at import, once; what is not becomes ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import require
from penstock.dialects.graph.sizes import Dim, UnknownSize, may_equal
from penstock.lowering.from_onnx.node import Held, Node, Unsupported


@dataclass(frozen=True)
class Scope:
    """
    The ops that compute a part of a node are called `node/part`, so that none of them is taken for its result.

    `numbers` holds the scalars of the node, which all scopes share.
    """

    node: Node
    path: str
    numbers: dict[float, SSAValue]

    @classmethod
    def of(cls, node: Node) -> Scope:
        """The scope of all of a node."""
        return cls(node, node.name, {})

    def within(self, part: str) -> Scope:
        """The scope of a part of this one."""
        return Scope(self.node, f"{self.path}/{part}", self.numbers) if part else self

    def emit(self, op: GraphOp, part: str) -> SSAValue:
        """Append the op that computes a part."""
        return self.node.builder.emit(op, f"{self.path}/{part}")

    def number(self, number: float, like: SSAValue) -> SSAValue:
        """A scalar of the type of a value."""
        if number not in self.numbers:
            self.numbers[number] = self.node.scalar(number, like)
        return self.numbers[number]

    def reshaped(self, x: SSAValue, shape: Sequence[int], part: str) -> SSAValue:
        """`x` in another shape; itself if it has it already."""
        if tensor_of(x).get_shape() == tuple(shape):
            return x
        return self.emit(graph.ReshapeOp(x, shape), part)

    def sliced(self, x: SSAValue, axis: int, start: int, size: int, part: str) -> SSAValue:
        """`size` elements of `x` along one axis; `x` itself if that is all of it."""
        sizes = list(tensor_of(x).get_shape())
        if (start, size) == (0, sizes[axis]):
            return x
        starts = [0] * len(sizes)
        starts[axis], sizes[axis] = start, size
        return self.emit(graph.SliceOp(x, starts=starts, sizes=sizes, steps=[1] * len(sizes)), part)


@dataclass(frozen=True)
class Weight:
    """An input of a node, or a part of one; `name` says which, and becomes the name of a stored constant."""

    scope: Scope
    held: Held
    name: str

    @classmethod
    def of(cls, scope: Scope, index: int, shape: Sequence[int], what: str) -> Weight:
        """Input `index`; raises VerifyException unless it is given and has `shape`."""
        node = scope.node
        check_shape(node.shape(index), shape, what)
        return cls(scope, node.held(index), node.proto.input[index])

    @classmethod
    def optional(cls, scope: Scope, index: int, shape: Sequence[int], what: str) -> Weight | None:
        """As `of`, None if the input is not given."""
        return cls.of(scope, index, shape, what) if scope.node.has(index) else None

    def direction(self, index: int, word: str) -> Weight:
        """What belongs to one direction, without the dimension of directions, the first."""
        named = f"{self.name}/{word}" if word else self.name
        if not isinstance(self.held, SSAValue):
            return Weight(self.scope, self.held[index], named)
        one = self.scope.sliced(self.held, 0, index, 1, f"{named}/slice")
        shape = tensor_of(one).get_shape()[1:]
        return Weight(self.scope, self.scope.reshaped(one, shape, f"{named}/reshape"), named)

    def rows(self, start: int, size: int, word: str) -> Weight:
        """`size` entries along the first dimension."""
        named = f"{self.name}/{word}"
        if not isinstance(self.held, SSAValue):
            return Weight(self.scope, self.held[start : start + size], named)
        return Weight(self.scope, self.scope.sliced(self.held, 0, start, size, named), named)

    def transposed(self) -> Weight:
        """The transpose of a matrix."""
        named = f"{self.name}/transpose"
        if not isinstance(self.held, SSAValue):
            return Weight(self.scope, np.ascontiguousarray(self.held.T), named)
        return Weight(self.scope, self.scope.emit(graph.TransposeOp(self.held, perm=[1, 0]), named), named)

    def plus(self, other: Weight) -> Weight:
        """The sum of two weights of one shape, which are parts of one input."""
        named = f"{self.name}/add"
        if isinstance(self.held, SSAValue) or isinstance(other.held, SSAValue):
            return Weight(self.scope, self.scope.emit(graph.AddOp(self.value(), other.value()), named), named)
        return Weight(self.scope, self.held + other.held, named)

    def followed_by(self, other: Weight) -> Weight:
        """The entries of two parts of one input, one after the other."""
        named = f"{self.name}/concat"
        if isinstance(self.held, SSAValue) or isinstance(other.held, SSAValue):
            joined = graph.ConcatOp([self.value(), other.value()], axis=0)
            return Weight(self.scope, self.scope.emit(joined, named), named)
        return Weight(self.scope, np.concatenate([self.held, other.held]), named)

    @property
    def is_zero(self) -> bool:
        """Whether it is known to be all zeros: so exporters write a state that none is given for."""
        if not isinstance(self.held, SSAValue):
            return not np.any(self.held)
        owner = self.held.owner
        number = owner.x.owner if isinstance(owner, graph.ExpandOp) else None
        return isinstance(number, graph.ConstantOp) and number.weight is None and not any(number.dense.get_values())

    def value(self) -> SSAValue:
        """The weight as a value of the graph."""
        if isinstance(self.held, SSAValue):
            return self.held
        return self.scope.node.builder.constant(self.held, self.name)


def check_shape(found: Sequence[int], wanted: Sequence[int], what: str) -> None:
    """Raise VerifyException unless two shapes are equal: an UnknownSize if they might be, with other sizes known."""
    if tuple(found) == tuple(wanted):
        return
    agree = len(found) == len(wanted) and all(may_equal(*pair) for pair in zip(found, wanted, strict=True))
    require(agree, f"{what} must have the shape {list(wanted)}, found {list(found)}")
    pairs = zip(found, wanted, strict=True)
    unknown = next(each for pair in pairs if pair[0] != pair[1] for each in pair if isinstance(each, Dim))
    raise UnknownSize(unknown, f"must be known: {what} must have the shape {list(wanted)}, found {list(found)}")


class Activation(Protocol):
    """A function of each element."""

    def __call__(self, scope: Scope, x: SSAValue, part: str, *, clips: bool = True) -> SSAValue:
        """Append its ops, of which the last computes `part`; `clips` where the attribute clip applies, if given."""
        ...


@dataclass(frozen=True)
class _Form:
    """
    An activation: its ops, and alpha and beta, if it has them, where none are given.

    These are the defaults of the operators of the same names, as ONNX wants. Of two activations there is none any
    more, and runtimes differ: NaN stands for a number that must be given.
    """

    build: Callable[[Scope, SSAValue, str, float, float], SSAValue]
    alpha: float | None = None
    beta: float | None = None


def _affine(scope: Scope, x: SSAValue, part: str, alpha: float, beta: float) -> SSAValue:
    scaled = scope.emit(graph.MulOp(x, scope.number(alpha, x)), f"{part}/scale")
    return scope.emit(graph.AddOp(scaled, scope.number(beta, x)), part)


def _scaled_tanh(scope: Scope, x: SSAValue, part: str, alpha: float, beta: float) -> SSAValue:
    inner = scope.emit(graph.MulOp(x, scope.number(beta, x)), f"{part}/scale")
    return scope.emit(graph.MulOp(scope.emit(graph.TanhOp(inner), f"{part}/tanh"), scope.number(alpha, x)), part)


def _softsign(scope: Scope, x: SSAValue, part: str, alpha: float, beta: float) -> SSAValue:
    size = scope.emit(graph.AddOp(scope.emit(graph.AbsOp(x), f"{part}/abs"), scope.number(1.0, x)), f"{part}/size")
    return scope.emit(graph.DivOp(x, size), part)


def _thresholded_relu(scope: Scope, x: SSAValue, part: str, alpha: float, beta: float) -> SSAValue:
    """x where x > alpha, else 0."""
    above = scope.emit(graph.GreaterOp(x, scope.number(alpha, x)), f"{part}/above")
    return scope.emit(graph.WhereOp(above, x, scope.number(0.0, x)), part)


_FORMS: dict[str, _Form] = {
    "affine": _Form(_affine, math.nan, math.nan),
    "elu": _Form(lambda s, x, p, a, b: s.emit(graph.EluOp(x, alpha=a), p), 1.0),
    "hardsigmoid": _Form(lambda s, x, p, a, b: s.emit(graph.HardSigmoidOp(x, alpha=a, beta=b), p), 0.2, 0.5),
    "leakyrelu": _Form(lambda s, x, p, a, b: s.emit(graph.LeakyReluOp(x, alpha=a), p), 0.01),
    "relu": _Form(lambda s, x, p, a, b: s.emit(graph.ReluOp(x), p)),
    "scaledtanh": _Form(_scaled_tanh, math.nan, math.nan),
    "sigmoid": _Form(lambda s, x, p, a, b: s.emit(graph.SigmoidOp(x), p)),
    "softplus": _Form(lambda s, x, p, a, b: s.emit(graph.SoftplusOp(x), p)),
    "softsign": _Form(_softsign),
    "tanh": _Form(lambda s, x, p, a, b: s.emit(graph.TanhOp(x), p)),
    "thresholdedrelu": _Form(_thresholded_relu, 1.0),
}


def activations_of(node: Node, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """
    The activations of each direction: those of the attributes, or `defaults`.

    alpha and beta are lists from which each activation that has one takes the next, or its default at the end; their
    inputs are clipped to [-clip, clip] if the attribute is given. Raises VerifyException for another number of
    activations, and Unsupported for one that is not known or lacks its numbers.
    """
    words = node.strings("activations") or list(defaults) * directions
    count = len(defaults) * directions
    require(len(words) == count, f"{len(words)} activations, not {count}")
    alphas, betas = (iter(node.floats(name)) for name in ("activation_alpha", "activation_beta"))
    limit = node.float("clip", 0.0)
    found = [_activation(word, alphas, betas, limit) for word in words]
    return [found[start : start + len(defaults)] for start in range(0, count, len(defaults))]


def _activation(word: str, alphas: Iterator[float], betas: Iterator[float], limit: float) -> Activation:
    form = _FORMS.get(word.lower())
    if form is None:
        raise Unsupported(f"the activation {word}")
    alpha = 0.0 if form.alpha is None else next(alphas, form.alpha)
    beta = 0.0 if form.beta is None else next(betas, form.beta)
    if math.isnan(alpha) or math.isnan(beta):
        raise Unsupported(f"the activation {word} without an alpha and a beta")

    def build(scope: Scope, x: SSAValue, part: str, *, clips: bool = True) -> SSAValue:
        if clips and limit > 0.0:
            x = scope.emit(graph.ClipOp(x, min=-limit, max=limit), f"{part}/clip")
        return form.build(scope, x, part, alpha, beta)

    return build
