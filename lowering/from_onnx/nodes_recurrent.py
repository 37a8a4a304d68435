# SPDX-License-Identifier: Apache-2.0
"""
Importers of RNN, GRU, LSTM and LinearAttention, each direction of which is a `graph.loop` over the steps.

The inputs of all steps are multiplied by the weights at once, before the loop, with the biases added; a step multiplies
the state by the recurrence weights and computes the gates. So a layer of T steps is one large matrix product and T
small ones. See Appleyard et al., "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, section 3.

Neither the number of steps nor the batch need be known. Ops are called `node/step/forget`, and with two directions
`node/reverse/step/forget`. Only Y has the name of the node, and Y_h and Y_c have their own, so that values can be
compared with another runtime's by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx
from xdsl.dialects.builtin import f32, i64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import require
from penstock.dialects.graph.sizes import Dim, UnknownSize, may_equal
from penstock.lowering.from_onnx.node import Held, Importer, OnnxNode, Unsupported, imports
from penstock.passes.graph.terms import Term

X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLES = range(8)
"""The inputs."""

DIRECTIONS = {"forward": ("",), "reverse": ("",), "bidirectional": ("forward", "reverse")}
"""For each value of the attribute, what the names of the ops of each direction contain."""

Activation: TypeAlias = Callable[[Term], Term]
"""A function of each element."""

Weight: TypeAlias = Any
"""A Term, or an array known at import, which is rearranged before it becomes a constant."""

State: TypeAlias = Sequence[Term]
"""H, or H and C: batch x hidden."""


def check_shape(found: Sequence[int], expected: Sequence[int], what: str) -> None:
    """Raise VerifyException unless two shapes are equal: an UnknownSize if they might be, with other sizes known."""
    if tuple(found) == tuple(expected):
        return
    agree = len(found) == len(expected) and all(may_equal(*pair) for pair in zip(found, expected, strict=True))
    require(agree, f"{what} must have the shape {list(expected)}, found {list(found)}")
    pairs = zip(found, expected, strict=True)
    unknown = next(each for pair in pairs if pair[0] != pair[1] for each in pair if isinstance(each, Dim))
    raise UnknownSize(unknown, f"must be known: {what} must have the shape {list(expected)}, found {list(found)}")


def check_steps(steps: int) -> None:
    """Raise if there are no steps."""
    if steps == 0:
        raise Unsupported("a sequence without a step")


def _rows(x: Weight, start: int, size: int) -> Weight:
    return x.cut(0, start, size) if isinstance(x, Term) else x[start : start + size]


def _index(x: Weight, axis: int, index: int) -> Weight:
    """One element along an axis, which vanishes."""
    if not isinstance(x, Term):
        return x.take(index, axis)
    return x.cut(axis, index, 1).reshape([*x.shape[:axis], *x.shape[axis + 1 :]])


# Activations.

_OPERATORS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")
"""The activations that are operators of ONNX, with their defaults of alpha and beta."""

_FORMULAS: dict[str, Callable[[Term, float, float], Term]] = {
    "affine": lambda x, alpha, beta: x * alpha + beta,
    "scaledtanh": lambda x, alpha, beta: (x * beta).apply("tanh") * alpha,
}
"""Those that have no defaults any more: runtimes differ, so alpha and beta must be given."""


def activations_of(node: OnnxNode, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """
    The activations of each direction: those of the attributes, or `defaults`.

    alpha and beta are lists from which each activation that has one takes the next, or its default at the end. Raises
    VerifyException for another number of activations, and Unsupported for one that is not ONNX's or lacks its numbers.
    """
    words = node.strings("activations") or list(defaults) * directions
    count = len(defaults) * directions
    require(len(words) == count, f"{len(words)} activations, not {count}")
    given = {name: iter(node.floats(f"activation_{name}")) for name in ("alpha", "beta")}
    found = [_activation(node, word, given) for word in words]
    return [found[start : start + len(defaults)] for start in range(0, count, len(defaults))]


def _activation(node: OnnxNode, word: str, given: dict[str, Iterator[float]]) -> Activation:
    if (formula := _FORMULAS.get(word.lower())) is not None:
        alpha, beta = (next(numbers, math.nan) for numbers in given.values())
        if math.isnan(alpha) or math.isnan(beta):
            raise Unsupported(f"the activation {word} without an alpha and a beta")
        return lambda x: formula(x, alpha, beta)
    operator = next((each for each in _OPERATORS if each.lower() == word.lower()), None)
    if operator is None:
        raise Unsupported(f"the activation {word}, which is none of ONNX's")
    declared = onnx.defs.get_schema(operator).attributes
    numbers: dict[str, Any] = {name: next(each, None) for name, each in given.items() if name in declared}
    proto = onnx.helper.make_node(operator, ["x"], ["y"], **numbers)

    def apply(x: Term) -> Term:
        proto.name = node.code.path
        return node.code.term(node.builder.apply(proto, [x.value])[0])

    return apply


# The equations.


class Cell(ABC):
    """One direction of a layer: its weights, and the equations of a step. Gates are in the order of the weights."""

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    activations: ClassVar[Sequence[str]]
    """The names of those without any given."""

    def __init__(self, node: OnnxNode, hidden: int, index: int, word: str, functions: Sequence[Activation]):
        self.node, self.code, self.hidden = node, node.code, hidden
        self.index, self.word = index, word
        self.functions = functions

    # Weights.

    def weight(self, number: int, start: int = 0, size: int | None = None) -> Weight:
        """An input without the dimension of directions, its first, or some of the rows that are left."""
        held = self.node.held(number)
        with self.code.at("weights"):
            whole = _index(self.code.term(held) if isinstance(held, SSAValue) else held, 0, self.index)
            return whole if size is None else _rows(whole, start, size)

    def value(self, weight: Weight, number: int, part: str) -> Term:
        """A part of an input, of which the name of a stored constant tells."""
        if isinstance(weight, Term):
            return weight
        name = "/".join(filter(None, (self.node.proto.input[number], self.word, part)))
        return self.code.term(self.node.builder.constant(np.ascontiguousarray(weight), name))

    def transposed(self, number: int, part: str = "", start: int = 0, gates: int | None = None) -> Term:
        """The weights of some gates, or of all, as the right factor of a product."""
        found = self.weight(number, start * self.hidden, None if gates is None else gates * self.hidden)
        with self.code.at("weights"):
            return self.value(found.transpose([1, 0]), number, "/".join(filter(None, (part, "transpose"))))

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias: for the inputs of all gates, and then for the recurrence of all gates."""
        return self.node.has(B)

    def input_bias(self) -> Term:
        """The bias to add to the inputs of all steps: gates * hidden."""
        size = self.gates * self.hidden
        with self.code.at("weights"):
            return self.value(self.weight(B, 0, size) + self.weight(B, size, size), B, "input/add")

    # A step.

    @abstractmethod
    def prepare(self) -> None:
        """Read the weights that a step needs, before the first."""

    @abstractmethod
    def step(self, given: Term, state: State) -> list[Term]:
        """The state after a step: from its inputs times their weights, batch x gates * hidden, and the one before."""

    def columns(self, x: Term, index: int) -> Term:
        """The columns of a gate."""
        return x.cut(1, index * self.hidden, self.hidden)

    def gate(self, function: int, part: str, x: Term) -> Term:
        """An activation of what is clipped to [-clip, clip], if the attribute is given."""
        limit = self.node.float("clip", 0.0)
        with self.code.at(part):
            return self.functions[function](x.clip(-limit, limit) if limit > 0.0 else x)

    def plus_product(self, given: Term, hidden: Term, matrix: Term, part: str) -> Term:
        """`given` plus the product of a state and a matrix."""
        with self.code.at(part):
            return hidden @ matrix + given


class RnnCell(Cell):
    """H = f(X W' + H R' + Wb + Rb)."""

    gates = 1
    activations = ("Tanh",)

    def prepare(self) -> None:
        self.all_gates = self.transposed(R)

    def step(self, given: Term, state: State) -> list[Term]:
        (hidden,) = state
        return [self.gate(0, "hidden", self.plus_product(given, hidden, self.all_gates, "gates"))]


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

    def prepare(self) -> None:
        self.all_gates = self.transposed(R)
        words = ("input", "output", "forget") if self.node.has(PEEPHOLES) else ()
        parts = [self.weight(PEEPHOLES, at * self.hidden, self.hidden) for at in range(len(words))]
        self.peepholes = [self.value(part, PEEPHOLES, word) for part, word in zip(parts, words, strict=True)]

    def step(self, given: Term, state: State) -> list[Term]:
        hidden, cell = state
        sums = self.plus_product(given, hidden, self.all_gates, "gates")
        i = self.gate(0, "input", self._seeing(sums, 0, cell))
        is_coupled = self.node.flag("input_forget", False)
        f = 1.0 - i if is_coupled else self.gate(0, "forget", self._seeing(sums, 2, cell))
        new = f * cell + i * self.gate(1, "candidate", self.columns(sums, 3))
        o = self.gate(0, "output", self._seeing(sums, 1, new))
        with self.code.at("squashed"):
            shown = self.functions[2](new)
        return [o * shown, new]

    def _seeing(self, sums: Term, index: int, cell: Term) -> Term:
        """The columns of a gate, and what it sees of a cell state through its peephole."""
        own = self.columns(sums, index)
        return own + cell * self.peepholes[index] if self.peepholes else own


class GruCell(Cell):
    """
    With the gates z, r and the candidate h, in the order of the weights, s, g the activations:

        z, r = s(X W' + H R' + Wb + Rb)                   h = g(X W' + (r (.) H) R' + Wb + Rb)
        H' = (1 - z) (.) h + z (.) H

    With `linear_before_reset`, h = g(X W' + r (.) (H R' + Rb) + Wb).
    """

    gates = 3
    activations = ("Sigmoid", "Tanh")

    @property
    def resets_last(self) -> bool:
        return self.node.flag("linear_before_reset", False)

    def prepare(self) -> None:
        self.two_gates = self.transposed(R, "gates", 0, 2)
        self.of_candidate = self.transposed(R, "candidate", 2, 1)
        self.candidate_bias: Term | None = None
        if self.resets_last and self.has_bias:
            bias = self.weight(B, (self.gates + 2) * self.hidden, self.hidden)
            self.candidate_bias = self.value(bias, B, "candidate")

    def input_bias(self) -> Term:
        """Without the part that the reset gate multiplies."""
        if not self.resets_last:
            return super().input_bias()
        both = 2 * self.hidden
        with self.code.at("weights"):
            gates = self.weight(B, 0, both) + self.weight(B, self.gates * self.hidden, both)
            parts = [gates, self.weight(B, both, self.hidden)]
            joined = self.code.concat(parts, 0) if isinstance(gates, Term) else np.concatenate(parts)
            return self.value(joined, B, "input/add/concat")

    def step(self, given: Term, state: State) -> list[Term]:
        (hidden,) = state
        sums = self.plus_product(given.cut(1, 0, 2 * self.hidden), hidden, self.two_gates, "gates")
        z = self.gate(0, "update", self.columns(sums, 0))
        candidate = self.gate(1, "candidate", self._recalling(sums, self.columns(given, 2), hidden))
        return [z * hidden + (1.0 - z) * candidate]

    def _recalling(self, sums: Term, own: Term, hidden: Term) -> Term:
        """What the candidate is computed of: the part of the inputs, and of the state what the reset gate lets by."""
        reset = self.gate(0, "reset", self.columns(sums, 1))
        if not self.resets_last:
            return self.plus_product(own, reset * hidden, self.of_candidate, "candidate")
        seen = hidden @ self.of_candidate
        return reset * (seen if self.candidate_bias is None else seen + self.candidate_bias) + own


class Layer:
    """One node, each direction of which is a loop."""

    def __init__(self, node: OnnxNode, cell: type[Cell]):
        self.node, self.code = node, node.code
        x = node.code.input(X)
        require(len(x.shape) == 3, f"X has {len(x.shape)} dimensions, not 3")
        self.batch_first = node.flag("layout", False)
        with self.code.at("steps"):
            self.x = x.transpose([1, 0, 2]) if self.batch_first else x
        self.steps, self.batch, self.features = self.x.shape
        check_steps(self.steps)
        direction = node.string("direction", "forward")
        require(direction in DIRECTIONS, f'the direction "{direction}" is none of {", ".join(DIRECTIONS)}')
        words = DIRECTIONS[direction]
        require(len(node.shape(R)) == 3, f"R has {len(node.shape(R))} dimensions, not 3")
        self.hidden = node.int("hidden_size", node.shape(R)[2])
        self._check_shapes(cell, len(words))
        self.lengths = self._lengths()
        functions = activations_of(node, cell.activations, len(words))
        self.backwards = [direction == "reverse"] if len(words) == 1 else [False, True]
        self.cells = [cell(node, self.hidden, index, word, functions[index]) for index, word in enumerate(words)]

    def _check_shapes(self, cell: type[Cell], count: int) -> None:
        node, gates, hidden = self.node, cell.gates, self.hidden
        state = (self.batch, count, hidden) if self.batch_first else (count, self.batch, hidden)
        shapes: dict[int, tuple[str, tuple[int, ...]]] = {
            W: ("W", (count, gates * hidden, self.features)),
            R: ("R", (count, gates * hidden, hidden)),
            B: ("B", (count, 2 * gates * hidden)),
            INITIAL_H: ("initial_h", state),
            INITIAL_C: ("initial_c", state),
            PEEPHOLES: ("P", (count, 3 * hidden)),
        }
        for number, (what, shape) in shapes.items():
            if number in (W, R) or node.has(number):
                check_shape(node.shape(number), shape, what)

    def _lengths(self) -> Term | None:
        """The number of steps of each sequence of the batch, a column, None if all have all."""
        if not self.node.has(LENGTHS):
            return None
        check_shape(self.node.shape(LENGTHS), (self.batch,), "sequence_lens")
        lengths = self.node.held(LENGTHS)
        if not isinstance(lengths, SSAValue):
            within = bool(np.all((lengths >= 0) & (lengths <= self.steps)))
            require(within, f"the lengths {lengths.tolist()} are not all within {self.steps} steps")
            if not lengths.all():
                raise Unsupported("a sequence of length 0, after which ONNX does not define the state")
            if np.all(lengths == self.steps):
                return None
        with self.code.at("lengths"):
            return self.code.input(LENGTHS, i64).reshape([self.batch, 1])

    # The recurrence.

    def build(self) -> list[Held | None]:
        """Y, Y_h and Y_c, as far as they are used."""
        used = [*self.node.used_outputs, False, False, False]
        tracks = [
            self._looped(cell, backwards, used[0]) for cell, backwards in zip(self.cells, self.backwards, strict=True)
        ]
        states = self.cells[0].states
        outputs: list[Held | None] = [self._sequence([track[states] for track in tracks]) if used[0] else None]
        for state in range(states):
            finals = [track[state] for track in tracks]
            outputs.append(self._final(finals, self.node.proto.output[1 + state]) if used[state + 1] else None)
        while outputs and outputs[-1] is None:
            outputs.pop()
        return outputs

    def _looped(self, cell: Cell, backwards: bool, has_lines: bool) -> list[Term]:
        """What a direction yields: the final state, and H at every step: steps x batch x hidden."""

        def step(time: Term, before: State, given: Sequence[Term]) -> list[Term]:
            after = cell.step(given[0], before)
            if self.lengths is None:
                return [*after, *after[: int(has_lines)]]
            # Past the end of a sequence the state stays, and Y is 0.
            active = self.lengths > time
            kept = [active.where(new, old) for new, old in zip(after, before, strict=True)]
            return [*kept, *([active.where(after[0], 0.0)] if has_lines else ())]

        with self.code.at(cell.word):
            given = self._projected(cell)
            initial = [self._initial(cell, INITIAL_H + number) for number in range(cell.states)]
            cell.prepare()
            with self.code.at("step"):
                return self.code.loop(initial, [given], step, reverse=backwards)

    def _projected(self, cell: Cell) -> Term:
        """The inputs of all steps times their weights, plus the biases: steps x batch x gates * hidden."""
        with self.code.at("projection"):
            rows = self.x.reshape([self.steps * self.batch, self.features])
            product = rows @ cell.transposed(W)
            product = product + cell.input_bias() if cell.has_bias else product
            return product.reshape([self.steps, self.batch, cell.gates * self.hidden])

    def _initial(self, cell: Cell, number: int) -> Term:
        """The state of one direction before its first step, batch x hidden."""
        with self.code.at("initial"):
            if not self.node.has(number):
                return self.code.number(0.0, self.x.element_type).expand([self.batch, self.hidden])
            held = self.node.held(number)
            whole = self.code.term(held) if isinstance(held, SSAValue) else held
            own = _index(whole, 1 if self.batch_first else 0, cell.index)
            return cell.value(own, number, "slice")

    # The outputs.

    def _sequence(self, tracks: Sequence[Term]) -> SSAValue:
        """Y: steps x directions x batch x hidden, or batch x steps x directions x hidden."""
        if self.batch_first:
            with self.code.at("lines"):
                tracks = [track.transpose([1, 0, 2]) for track in tracks]
        direction = 2 if self.batch_first else 1
        shape = list(tracks[0].shape)
        shape.insert(direction, 1)
        return self._stacked(tracks, shape, direction, self.node.name)

    def _final(self, finals: Sequence[Term], name: str) -> SSAValue:
        """Y_h or Y_c: directions x batch x hidden, or batch x directions x hidden."""
        direction = 1 if self.batch_first else 0
        shape = [self.batch, self.hidden]
        shape.insert(direction, 1)
        return self._stacked(finals, shape, direction, name)

    def _stacked(self, values: Sequence[Term], shape: Sequence[int], axis: int, name: str) -> SSAValue:
        """The values of all directions, in `shape`, along `axis`: an op called `name`."""
        emit = self.node.builder.emit
        if len(values) == 1:
            return emit(graph.ReshapeOp(values[0].value, shape), name)
        parts = [
            emit(graph.ReshapeOp(value.value, shape), f"{name}/{cell.word}")
            for value, cell in zip(values, self.cells, strict=True)
        ]
        return emit(graph.ConcatOp(parts, axis=axis), name)


def recurrent(cell: type[Cell]) -> Importer:
    """The importer of the operator with the equations of `cell`."""
    return lambda node: Layer(node, cell).build()


imports("GRU")(recurrent(GruCell))
imports("LSTM")(recurrent(LstmCell))
imports("RNN")(recurrent(RnnCell))


RULES = ("linear", "gated", "delta", "gated_delta")


@imports("LinearAttention")
def linear_attention(node: OnnxNode) -> list[SSAValue]:
    """
    Attention whose state is a matrix and not a history: the state S, one of `key size` by `value size` for each head,
    decays, forgets what the key k retrieves (`delta`), takes up k v', and is read by the query; all in f32.

    Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR 2025.
    """
    code = node.code
    rule = node.string("update_rule", "gated_delta")
    require(rule in RULES, f'update_rule is one of {", ".join(RULES)}, not "{rule}"')
    heads, kv_heads = node.int("q_num_heads", 0), node.int("kv_num_heads", 0)
    require(
        heads > 0 and kv_heads > 0 and heads % kv_heads == 0,
        f"q_num_heads {heads} is no positive multiple of kv_num_heads {kv_heads}",
    )
    is_gated, is_delta = rule.startswith("gated"), rule.endswith("delta")
    for number, what, is_needed in ((4, "decay", is_gated), (5, "beta", is_delta)):
        require(node.has(number) == is_needed, f"update_rule {rule} {'needs' if is_needed else 'takes no'} {what}")
    batches, steps, width = node.shape(0)
    check_steps(steps)
    key_size, value_size = width // heads, node.shape(2)[2] // kv_heads
    require(
        tuple(node.shape(1)) == (batches, steps, kv_heads * key_size) and width == heads * key_size,
        f"keys of shape {list(node.shape(1))} for queries of {list(node.shape(0))}",
    )
    element = node.type(0).element_type
    scale = node.float("scale", 0.0) or 1 / math.sqrt(key_size)
    queries, keys, values = (_of_heads(node, index, count) for index, count in enumerate((heads, kv_heads, kv_heads)))
    decays = _of_heads(node, 4, kv_heads).apply("exp") if is_gated else None
    # One number for each head, or for all of them.
    betas = _of_heads(node, 5, node.shape(5)[2]) if is_delta else None
    state_shape = [batches, kv_heads, key_size, value_size]
    if node.has(3):
        require(list(node.shape(3)) == state_shape, f"a state of shape {list(node.shape(3))}, not {state_shape}")
        state = code.input(3, f32)
    else:
        state = code.number(0.0, f32).expand(state_shape)
    # What a step reads: a line of each, steps first.
    read = [queries, keys, values, *(each for each in (decays, betas) if each is not None)]

    def step(_: Term, carried: Sequence[Term], lines: Sequence[Term]) -> list[Term]:
        (state,) = carried
        query, key, value, *others = lines
        if is_gated:
            # Over the rows of the state: one number, or one for each row.
            state = state * others.pop(0).transpose([0, 1, 3, 2])
        if is_delta:
            value = others.pop(0) * (value - key @ state)
        state = state + key.transpose([0, 1, 3, 2]) * value
        # The queries of a group share the state of their head.
        grouped = query.reshape([batches, kv_heads, heads // kv_heads, key_size])
        return [state, (grouped @ state).reshape([batches, heads * value_size])]

    with code.at("step"):
        state, lines = code.loop([state], read, step)
    output = lines.transpose([1, 0, 2]) * scale
    return [output.cast(element).value, state.cast(node.type(3).element_type if node.has(3) else element).value]


def _of_heads(node: OnnxNode, index: int, heads: int) -> Term:
    """(batches, steps, heads * size) as (steps, batches, heads, 1, size), in f32."""
    x = node.code.input(index, f32)
    batches, steps, width = x.shape
    require(width % heads == 0, f"{width} numbers for {heads} heads")
    return x.transpose([1, 0, 2]).reshape([steps, batches, heads, 1, width // heads])
