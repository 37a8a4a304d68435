"""
Importers of RNN, GRU and LSTM, which are unrolled: every step becomes ordinary ops.

The inputs of all steps are multiplied by the weights at once, outside the recurrence, with the biases added; a step
multiplies the state by the recurrence weights and computes the gates on slices. So a layer of T steps is one large
matrix product and T small ones, and the first of these is left out if the initial state is zero. See Appleyard et
al., "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, section 3.

The number of steps must be known; the batch need not be. Ops are called `node/step3/forget`, and with two directions
`node/reverse/step3/forget`. Only Y has the name of the node, and Y_h and Y_c have their own, so that values can be
compared with another runtime's by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import GraphOp, UnaryOp, tensor_of
from penstock.dialects.graph.base import python_value, require
from penstock.dialects.graph.sizes import Dim, UnknownSize, may_equal
from penstock.lowering.from_onnx.node import Held, Importer, Node, Unsupported, imports, op_called


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

    These are the defaults of the operators of the same names, as ONNX wants. Two activations have none any more, and
    runtimes differ: NaN stands for a number that must be given.
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
    "scaledtanh": _Form(_scaled_tanh, math.nan, math.nan),
    "softsign": _Form(_softsign),
    "thresholdedrelu": _Form(_thresholded_relu, 1.0),
}
"""The activations that are several ops."""


def _form(word: str) -> _Form | None:
    """An activation, which may be an elementwise op of its name, with the defaults of that."""
    if (form := _FORMS.get(word.lower())) is not None:
        return form
    op_class = op_called(word)
    if op_class is None or not issubclass(op_class, UnaryOp):
        return None
    declared = op_class.get_irdl_definition().properties
    if not declared.keys() <= {"alpha", "beta"}:
        return None

    def build(scope: Scope, x: SSAValue, part: str, alpha: float, beta: float) -> SSAValue:
        given: dict[str, Any] = {"alpha": alpha, "beta": beta}
        return scope.emit(op_class(x, **{name: given[name] for name in declared}), part)

    return _Form(build, **{name: python_value(each.default_value) for name, each in declared.items()})


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
    form = _form(word)
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


State = Sequence[SSAValue | None]
"""H, or H and C: batch x hidden; None is zeros."""


class Cell(ABC):
    """
    The equations of one step.

    `recurrence` is gates * hidden x hidden; `bias` has the entries of all gates for the inputs, then for the
    recurrence; `functions` are the activations.
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    activations: ClassVar[Sequence[str]]
    """The names of those without any given."""

    def __init__(
        self,
        node: Node,
        hidden: int,
        functions: Sequence[Activation],
        recurrence: Weight,
        bias: Weight | None,
        peephole: Weight | None,
    ):
        self.node = node
        self.hidden = hidden
        self.functions = functions
        self.recurrence = recurrence
        self.bias = bias
        self.peephole = peephole

    def input_bias(self) -> Weight | None:
        """The bias to add to the inputs of all steps: gates * hidden."""
        if self.bias is None:
            return None
        size = self.gates * self.hidden
        return self.bias.rows(0, size, "input").plus(self.bias.rows(size, size, "recurrence"))

    @abstractmethod
    def step(self, scope: Scope, given: SSAValue, state: State) -> list[SSAValue]:
        """The state after a step: from its inputs times their weights, batch x gates * hidden, and the one before."""

    def gate(self, scope: Scope, x: SSAValue, index: int, part: str) -> SSAValue:
        """The columns of gate `index`."""
        return scope.sliced(x, 1, index * self.hidden, self.hidden, f"{part}/slice")

    def matrix(self, start: int, gates: int, word: str) -> SSAValue:
        """The recurrence weights of some gates, as the right factor of a product."""
        part = self.recurrence
        if gates < self.gates:
            part = part.rows(start * self.hidden, gates * self.hidden, word)
        return part.transposed().value()


class RnnCell(Cell):
    """H = f(X W' + H R' + Wb + Rb)."""

    gates = 1
    activations = ("Tanh",)

    @cached_property
    def all_gates(self) -> SSAValue:
        return self.matrix(0, 1, "")

    def step(self, scope: Scope, given: SSAValue, state: State) -> list[SSAValue]:
        (hidden,) = state
        sums = given if hidden is None else _plus_product(scope, given, hidden, self.all_gates, "gates")
        return [self.functions[0](scope, sums, "hidden")]


class LstmCell(Cell):
    """
    With the gates i, o, f and the candidate c, in the order of the weights, s, g, h the activations:

        i, f = s(X W' + H R' + P (.) C + Wb + Rb)         c = g(X W' + H R' + Wb + Rb)
        C' = f (.) C + i (.) c
        o = s(X W' + H R' + P (.) C' + Wb + Rb)           H' = o (.) h(C')

    With `input_forget`, f = 1 - i. The attribute clip applies to the inputs of s and g, not to that of h: ONNX speaks
    of all activations, but onnxruntime, which models are tried on, does so.
    """

    gates = 4
    states = 2
    activations = ("Sigmoid", "Tanh", "Tanh")

    @cached_property
    def all_gates(self) -> SSAValue:
        return self.matrix(0, 4, "")

    @cached_property
    def peepholes(self) -> list[SSAValue]:
        """Of i, o and f."""
        assert self.peephole is not None
        words = ("input", "output", "forget")
        parts = (self.peephole.rows(at * self.hidden, self.hidden, word) for at, word in enumerate(words))
        return [part.value() for part in parts]

    def step(self, scope: Scope, given: SSAValue, state: State) -> list[SSAValue]:
        hidden, cell = state
        sigma, tanh, squash = self.functions
        sums = given if hidden is None else _plus_product(scope, given, hidden, self.all_gates, "gates")
        i = sigma(scope, self._seeing(scope, sums, 0, cell, "input"), "input")
        candidate = tanh(scope, self.gate(scope, sums, 3, "candidate"), "candidate")
        new = update = scope.emit(graph.MulOp(i, candidate), "update")
        if cell is not None:
            if self.node.flag("input_forget", False):
                f = scope.emit(graph.SubOp(scope.number(1.0, i), i), "forget")
            else:
                f = sigma(scope, self._seeing(scope, sums, 2, cell, "forget"), "forget")
            new = scope.emit(graph.AddOp(scope.emit(graph.MulOp(f, cell), "kept"), update), "cell")
        o = sigma(scope, self._seeing(scope, sums, 1, new, "output"), "output")
        shown = squash(scope, new, "squashed", clips=False)
        return [scope.emit(graph.MulOp(o, shown), "hidden"), new]

    def _seeing(self, scope: Scope, sums: SSAValue, index: int, cell: SSAValue | None, part: str) -> SSAValue:
        """The columns of a gate, and what it sees of a cell state through its peephole."""
        own = self.gate(scope, sums, index, part)
        if self.peephole is None or cell is None:
            return own
        seen = scope.emit(graph.MulOp(cell, self.peepholes[index]), f"{part}/peephole")
        return scope.emit(graph.AddOp(own, seen), f"{part}/sum")


class GruCell(Cell):
    """
    With the gates z, r and the candidate h, in the order of the weights, s, g the activations:

        z, r = s(X W' + H R' + Wb + Rb)                   h = g(X W' + (r (.) H) R' + Wb + Rb)
        H' = (1 - z) (.) h + z (.) H

    With `linear_before_reset`, h = g(X W' + r (.) (H R' + Rb) + Wb).
    """

    gates = 3
    activations = ("Sigmoid", "Tanh")

    @cached_property
    def resets_last(self) -> bool:
        return self.node.flag("linear_before_reset", False)

    @cached_property
    def two_gates(self) -> SSAValue:
        return self.matrix(0, 2, "gates")

    @cached_property
    def of_candidate(self) -> SSAValue:
        return self.matrix(2, 1, "candidate")

    @cached_property
    def candidate_bias(self) -> SSAValue | None:
        """Rb of the candidate."""
        if self.bias is None:
            return None
        return self.bias.rows((self.gates + 2) * self.hidden, self.hidden, "candidate").value()

    def input_bias(self) -> Weight | None:
        """Without the part that the reset gate multiplies."""
        if self.bias is None or not self.resets_last:
            return super().input_bias()
        size, both = self.gates * self.hidden, 2 * self.hidden
        gates = self.bias.rows(0, both, "input").plus(self.bias.rows(size, both, "recurrence"))
        return gates.followed_by(self.bias.rows(both, self.hidden, "candidate/input"))

    def step(self, scope: Scope, given: SSAValue, state: State) -> list[SSAValue]:
        (hidden,) = state
        sigma, tanh = self.functions
        sums = scope.sliced(given, 1, 0, 2 * self.hidden, "gates/slice")
        if hidden is not None:
            sums = _plus_product(scope, sums, hidden, self.two_gates, "gates")
        z = sigma(scope, self.gate(scope, sums, 0, "update"), "update")
        own = self.gate(scope, given, 2, "candidate")
        candidate = tanh(scope, self._recalling(scope, sums, own, hidden), "candidate")
        rest = scope.emit(graph.SubOp(scope.number(1.0, z), z), "rest")
        new = scope.emit(graph.MulOp(rest, candidate), "hidden" if hidden is None else "new")
        if hidden is None:
            return [new]
        return [scope.emit(graph.AddOp(scope.emit(graph.MulOp(z, hidden), "kept"), new), "hidden")]

    def _recalling(self, scope: Scope, sums: SSAValue, own: SSAValue, hidden: SSAValue | None) -> SSAValue:
        """What the candidate is computed of: the part of the inputs, and of the state what the reset gate lets by."""

        def reset(x: SSAValue) -> SSAValue:
            r = self.functions[0](scope, self.gate(scope, sums, 1, "reset"), "reset")
            return scope.emit(graph.MulOp(r, x), "recalled")

        if not self.resets_last:
            if hidden is None:
                return own
            return _plus_product(scope, own, reset(hidden), self.of_candidate, "candidate")
        seen = self.candidate_bias
        if hidden is not None:
            product = scope.emit(graph.MatmulOp(hidden, self.of_candidate), "candidate/product")
            seen = product if seen is None else scope.emit(graph.AddOp(product, seen), "candidate/seen")
        return own if seen is None else scope.emit(graph.AddOp(reset(seen), own), "candidate/sum")


def _plus_product(scope: Scope, given: SSAValue, hidden: SSAValue, matrix: SSAValue, part: str) -> SSAValue:
    """`given` plus the product of a state and a matrix."""
    product = scope.emit(graph.MatmulOp(hidden, matrix), f"{part}/product")
    return scope.emit(graph.AddOp(product, given), f"{part}/sum")


DIRECTIONS = {"forward": ("",), "reverse": ("",), "bidirectional": ("forward", "reverse")}
"""For each value of the attribute, what the names of the ops of each direction contain."""

X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLES = range(8)
"""The inputs."""


@dataclass(frozen=True)
class _Track:
    """What one direction yields: H at every step, in order of time, and the final state."""

    hidden: Sequence[SSAValue]
    final: Sequence[SSAValue]


class _Layer:
    """One node, of which every direction is unrolled."""

    def __init__(self, node: Node, cell: type[Cell]):
        self.node = node
        self.cell = cell
        self.scope = Scope.of(node)
        self.x = node.value(X)
        require(len(node.shape(X)) == 3, f"X has {len(node.shape(X))} dimensions, not 3")
        self.batch_first = node.flag("layout", False)
        steps, self.batch, features = node.shape(X)
        if self.batch_first:
            steps, self.batch = self.batch, steps
        if isinstance(steps, Dim):
            raise UnknownSize(steps, "is the length of a sequence and must be known: every step becomes ops of its own")
        if steps == 0:
            raise Unsupported("a sequence without a step")
        self.steps, self.features = steps, features
        direction = node.string("direction", "forward")
        require(direction in DIRECTIONS, f'the direction "{direction}" is none of {", ".join(DIRECTIONS)}')
        self.words = DIRECTIONS[direction]
        self.backwards = [direction == "reverse"] if len(self.words) == 1 else [False, True]
        self._read_weights()
        self.lengths = self._lengths()

    def _read_weights(self) -> None:
        node, scope, count, gates = self.node, self.scope, len(self.words), self.cell.gates
        require(len(node.shape(R)) == 3, f"R has {len(node.shape(R))} dimensions, not 3")
        hidden = self.hidden = node.int("hidden_size", node.shape(R)[2])
        self.weight = Weight.of(scope, W, (count, gates * hidden, self.features), "W")
        self.recurrence = Weight.of(scope, R, (count, gates * hidden, hidden), "R")
        self.bias = Weight.optional(scope, B, (count, 2 * gates * hidden), "B")
        state = (self.batch, count, hidden) if self.batch_first else (count, self.batch, hidden)
        found = [Weight.optional(scope, INITIAL_H, state, "initial_h")]
        self.peephole: Weight | None = None
        if self.cell is LstmCell:
            found.append(Weight.optional(scope, INITIAL_C, state, "initial_c"))
            self.peephole = Weight.optional(scope, PEEPHOLES, (count, 3 * hidden), "P")
        self.initial = [None if each is None or each.is_zero else each for each in found]

    def _lengths(self) -> Held | None:
        """The number of steps of each sequence of the batch, None if all have all; values as a column."""
        if not self.node.has(LENGTHS):
            return None
        check_shape(self.node.shape(LENGTHS), (self.batch,), "sequence_lens")
        lengths = self.node.held(LENGTHS)
        if isinstance(lengths, SSAValue):
            return self.scope.reshaped(lengths, [self.batch, 1], "lengths")
        within = bool(np.all((lengths >= 0) & (lengths <= self.steps)))
        require(within, f"the lengths {lengths.tolist()} are not all within {self.steps} steps")
        if not lengths.all():
            raise Unsupported("a sequence of length 0, after which ONNX does not define the state")
        return None if np.all(lengths == self.steps) else lengths

    # The recurrence.

    def build(self) -> list[Held | None]:
        """Y, Y_h and Y_c, as far as they are used."""
        functions = activations_of(self.node, self.cell.activations, len(self.words))
        tracks: list[_Track] = []
        for index, word in enumerate(self.words):
            cell = self.cell(
                self.node,
                self.hidden,
                functions[index],
                self.recurrence.direction(index, word),
                None if self.bias is None else self.bias.direction(index, word),
                None if self.peephole is None else self.peephole.direction(index, word),
            )
            tracks.append(self._unrolled(index, cell))
        used = [*self.node.used_outputs, False, False, False]
        outputs: list[Held | None] = [self._sequence(tracks) if used[0] else None]
        for state in range(self.cell.states):
            outputs.append(self._final(tracks, state) if used[state + 1] else None)
        while outputs and outputs[-1] is None:
            outputs.pop()
        return outputs

    def _unrolled(self, index: int, cell: Cell) -> _Track:
        scope = self.scope.within(self.words[index])
        given = self._projected(scope, cell, self.weight.direction(index, self.words[index]))
        state: State = [self._initial(scope, each, index) for each in self.initial]
        hidden: dict[int, SSAValue] = {}
        order = range(self.steps)
        for time in reversed(order) if self.backwards[index] else order:
            here = scope.within(f"step{time}")
            state, hidden[time] = self._step(here, cell, given, time, state)
        # There is a step, after which no part of the state is missing.
        return _Track([hidden[time] for time in order], [each for each in state if each is not None])

    def _projected(self, scope: Scope, cell: Cell, weight: Weight) -> SSAValue:
        """The inputs of all steps times their weights, plus the biases, in the order of dimensions of X."""
        rows = self.steps * self.batch
        flat = scope.reshaped(self.x, [rows, self.features], "projection/rows")
        product = scope.emit(graph.MatmulOp(flat, weight.transposed().value()), "projection/product")
        if (bias := cell.input_bias()) is not None:
            product = scope.emit(graph.AddOp(product, bias.value()), "projection")
        leading = (self.batch, self.steps) if self.batch_first else (self.steps, self.batch)
        return scope.reshaped(product, [*leading, cell.gates * self.hidden], "projection/steps")

    def _step(self, scope: Scope, cell: Cell, given: SSAValue, time: int, before: State) -> tuple[State, SSAValue]:
        """The state after a step, and its line of Y: past the end of a sequence the state stays, and Y is 0."""
        active = self._active(scope, time)
        if isinstance(active, np.ndarray) and not active.any():
            return before, self._zeros()
        axis = 1 if self.batch_first else 0
        own = scope.sliced(given, axis, time, 1, "given/slice")
        own = scope.reshaped(own, [self.batch, cell.gates * self.hidden], "given")
        after = cell.step(scope, own, before)
        if active is None or (isinstance(active, np.ndarray) and active.all()):
            return after, after[0]
        mask = active if isinstance(active, SSAValue) else self.node.constant(active, "mask")
        kept: list[SSAValue] = []
        for new, old in zip(after, before, strict=True):
            other = scope.number(0.0, new) if old is None else old
            kept.append(scope.emit(graph.WhereOp(mask, new, other), "kept"))
        shown = scope.emit(graph.WhereOp(mask, after[0], scope.number(0.0, after[0])), "shown")
        return kept, shown

    def _active(self, scope: Scope, time: int) -> Held | None:
        """Which sequences of the batch, a column, have the step `time`; None if all."""
        lengths = self.lengths
        if isinstance(lengths, SSAValue):
            now = self.node.constant(np.array(time, numpy_dtype(tensor_of(lengths).element_type)), "time")
            return scope.emit(graph.GreaterOp(lengths, now), "mask")
        return None if lengths is None else lengths[:, np.newaxis] > time

    def _initial(self, scope: Scope, weight: Weight | None, index: int) -> SSAValue | None:
        """The state of one direction before its first step: batch x hidden."""
        if weight is None:
            return None
        if not isinstance(weight.held, SSAValue):
            own = weight.held[:, index] if self.batch_first else weight.held[index]
            return self.node.builder.constant(np.ascontiguousarray(own), f"{weight.name}/slice")
        axis = 1 if self.batch_first else 0
        one = scope.sliced(weight.held, axis, index, 1, "initial/slice")
        return scope.reshaped(one, [self.batch, self.hidden], "initial")

    def _zeros(self) -> SSAValue:
        """A line of zeros; only lengths, which a known batch has, lead here."""
        dtype = numpy_dtype(tensor_of(self.x).element_type)
        return self.node.constant(np.zeros((self.batch, self.hidden), dtype), "zeros")

    # The outputs.

    def _sequence(self, tracks: Sequence[_Track]) -> SSAValue:
        """Y: steps x directions x batch x hidden, or batch x steps x directions x hidden."""
        lines: list[SSAValue] = []
        time, direction = (1, 2) if self.batch_first else (0, 1)
        shape = [self.batch, self.hidden]
        shape.insert(time, 1)
        for word, track in zip(self.words, tracks, strict=True):
            scope = self.scope.within(word)
            each = [scope.reshaped(value, shape, f"step{at}/line") for at, value in enumerate(track.hidden)]
            lines.append(each[0] if len(each) == 1 else scope.emit(graph.ConcatOp(each, axis=time), "lines"))
        shape[time] = self.steps
        shape.insert(direction, 1)
        return self._stacked(lines, shape, direction, self.node.name)

    def _final(self, tracks: Sequence[_Track], state: int) -> SSAValue:
        """Y_h or Y_c: directions x batch x hidden, or batch x directions x hidden."""
        direction = 1 if self.batch_first else 0
        shape = [self.batch, self.hidden]
        shape.insert(direction, 1)
        name = self.node.proto.output[1 + state]
        return self._stacked([track.final[state] for track in tracks], shape, direction, name)

    def _stacked(self, values: Sequence[SSAValue], shape: Sequence[int], axis: int, name: str) -> SSAValue:
        """The values of all directions, in `shape`, along `axis`: an op called `name`."""
        builder = self.node.builder

        def emit(op: GraphOp, part: str) -> SSAValue:
            return builder.emit(op, f"{name}{part}")

        if len(values) == 1:
            return emit(graph.ReshapeOp(values[0], shape), "")
        parts = [
            emit(graph.ReshapeOp(value, shape), f"/{word}") for value, word in zip(values, self.words, strict=True)
        ]
        return emit(graph.ConcatOp(parts, axis=axis), "")


def recurrent(cell: type[Cell]) -> Importer:
    """The importer of the operator with the equations of `cell`."""
    return lambda node: _Layer(node, cell).build()


imports("GRU")(recurrent(GruCell))
imports("LSTM")(recurrent(LstmCell))
imports("RNN")(recurrent(RnnCell))
