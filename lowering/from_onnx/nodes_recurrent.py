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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import require
from penstock.dialects.graph.sizes import Dim, UnknownSize
from penstock.lowering.from_onnx.node import Held, Importer, Node, Unsupported
from penstock.lowering.from_onnx.nodes_recurrent_cells import Cell, GruCell, LstmCell, RnnCell, State
from penstock.lowering.from_onnx.nodes_recurrent_parts import Scope, Weight, activations_of, check_shape

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


TABLE: dict[str, Importer] = {
    "GRU": recurrent(GruCell),
    "LSTM": recurrent(LstmCell),
    "RNN": recurrent(RnnCell),
}
