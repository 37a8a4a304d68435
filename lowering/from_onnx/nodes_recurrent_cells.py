"""The equations of RNN, GRU and LSTM: one step of one direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.lowering.from_onnx.node import Node
from penstock.lowering.from_onnx.nodes_recurrent_parts import Activation, Scope, Weight

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
