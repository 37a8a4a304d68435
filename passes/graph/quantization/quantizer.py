# SPDX-License-Identifier: Apache-2.0
"""Rebuilds a graph on 8-bit integers: what every scheme shares, and the ops that only move elements or compare them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr, StringAttr, f32, i8
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp, Tensor, tensor_of
from penstock.dialects.graph.base import SelectsElements
from penstock.dialects.locations import location_of_value
from penstock.dialects.remarks import remark
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.contractions import ContractionOp, Layer, contraction_at, contraction_length
from penstock.passes.graph.quantization.ranges import Range, value_names
from penstock.passes.graph.quantization.scales import LARGEST_LENGTH, Scale, quantized_array
from penstock.passes.graph.values import NodeBuilder, constant_array, derived, erase_dead, rebuilt

REMARK = "quantize_remark"
"""The attribute of an op that stays in float although integers reach it: why."""


@dataclass(frozen=True)
class Quantized:
    """The integers of a value."""

    value: SSAValue
    scale: Scale


@dataclass(frozen=True)
class QuantizedLayer:
    """One value that is computed in, or turned into, integers."""

    name: str
    """As in the table of ranges."""
    operation: str
    scale: Scale
    range: Range
    """Of the calibration; what the scale reaches may be more."""
    value: SSAValue
    """The 8-bit integers, in the new graph."""
    shift: int | None = None
    """Bits that sums are shifted to the right by."""


class Refused(Exception):
    """Why an op has no integer form here."""


class Quantizer(NodeBuilder, ABC):
    """The rebuilding of one function, in place."""

    def __init__(self, func: FuncOp, ranges: Mapping[str, Range], store: WeightStore, per_channel: bool):
        self.block: Block = func.body.block
        super().__init__(UNKNOWN_LOC, store, insert=self.block.add_op)
        self.names = value_names(func)
        self.ranges = ranges
        self.per_channel = per_channel
        self.layers: list[QuantizedLayer] = []
        self.remarks: list[tuple[str, str]] = []
        """Name and reason of each op that stays in float."""
        self._integers: dict[SSAValue, Quantized] = {}
        self._reals: dict[SSAValue, SSAValue] = {}
        self._done: set[Operation] = set()

    # what a scheme decides

    @abstractmethod
    def scale_for(self, found: Range) -> Scale:
        """The scale for activations in a range."""

    @abstractmethod
    def contraction(self, op: ContractionOp) -> None:
        """Rebuild a contraction and what it absorbs; raises Refused."""

    @abstractmethod
    def form_of(self, op: GraphOp) -> Callable[[Any, Any], None] | None:
        """
        How an op that is no contraction and selects no elements is rebuilt, by a function of the quantizer and the op,
        which raises Refused before it emits anything; None if it has no form.
        """

    @abstractmethod
    def move(self, op: GraphOp, given: Quantized) -> SSAValue:
        """Rebuild an op that selects elements on integers."""

    # the walk

    def run(self) -> None:
        """Rebuild the block; its arguments, and the types of what it returns, stay as they are."""
        ops = list(self.block.ops)
        for op in ops:
            op.detach()
        for argument in self.block.args:
            self._reals[argument] = argument
        for op in ops:
            if op not in self._done:
                self.location = op.location
                self._rebuild(op)
        for op in reversed(ops):
            op.erase()
        erase_dead(self.block)

    def _rebuild(self, op: Operation) -> None:
        reason = None
        if isinstance(op, GraphOp) and op.operands and tensor_of(op.results[0]).element_type == f32:
            try:
                if self._as_integers(op):
                    return
            except Refused as refused:
                reason = str(refused)
        copy = op.clone({operand: self.real(operand) for operand in op.operands})
        if reason is not None:
            copy.attributes[REMARK] = StringAttr(reason)
            name = self.names.get(op.results[0], op.name)
            self.remarks.append((name, f"{op.name}: {reason}"))
            remark(op, "missed", f"{op.name} stays in float: {reason}")
        self.block.add_op(copy)
        for before, after in zip(op.results, copy.results, strict=True):
            self._reals[before] = after

    def _as_integers(self, op: GraphOp) -> bool:
        """Rebuild `op` on integers if there is a form, and integers reach it; else emit nothing, or raise Refused."""
        if isinstance(op, ContractionOp):
            self.contraction(op)
            return True
        if not any(operand in self._integers for operand in op.operands):
            return False
        if op.has_trait(SelectsElements):
            given = self._integers.get(op.operands[0])
            if given is None:
                raise Refused("its data is no integers")
            self.define(op.results[0], Quantized(self.move(op, given), given.scale), op)
            return True
        form = self.form_of(op)
        if form is None:
            raise Refused("it has no integer form")
        form(self, op)
        return True

    def contraction_at(self, op: ContractionOp) -> Layer:
        """The contraction that begins at `op`, whose data and result can be integers; raises Refused."""
        found = contraction_at(op, self.store)
        if isinstance(found, str):
            raise Refused(found)
        if (length := contraction_length(op)) > LARGEST_LENGTH:
            raise Refused(f"its sums of {length} products may not fit into 32 bits")
        self.require(op.operands[0], found.result)
        return found

    # values

    def real(self, old: SSAValue) -> SSAValue:
        """The new value in float of an old one."""
        if old not in self._reals:
            given = self._integers[old]
            zero = None
            if given.scale.zero:
                zero = self.constant(np.asarray(given.scale.zero, np.int8), "zero")
            scale = self.constant(np.asarray(given.scale.factor, np.float32), "scale")
            op = graph.DequantizeLinearOp(given.value, scale, zero)
            # What is called as the old value is its integers; at the border it is this.
            self._reals[old] = self.add_at(op, "real", location_of_value(old))
        return self._reals[old]

    def integers(self, old: SSAValue) -> Quantized:
        """The integers of an old value, quantised here if it is in float; raises Refused without a range."""
        if old not in self._integers:
            scale, array = self.scale_of(old), constant_array(old, self.store)
            if array is None:
                value = self.quantized(self.real(old), scale, old)
            else:
                value = self.constant(quantized_array(array, scale), "integers")
            self.define(old, Quantized(value, scale), None)
        return self._integers[old]

    def parameters(self, scale: Scale) -> tuple[SSAValue, SSAValue | None]:
        """Emit a scale and its zero point, None if that is 0."""
        factor = self.constant(np.asarray(scale.factor, np.float32), "scale")
        return factor, self.constant(np.asarray(scale.zero, np.int8), "zero") if scale.zero else None

    def quantized(self, real: SSAValue, scale: Scale, old: SSAValue) -> SSAValue:
        """Emit the quantisation of a new value in float."""
        factor, zero = self.parameters(scale)
        return self.add_at(
            graph.QuantizeLinearOp(real, factor, zero, element_type=i8),
            "q",
            derived(location_of_value(old), "integers"),
        )

    def require(self, *olds: SSAValue) -> None:
        """Raise Refused unless each value is in integers already, or can be: is f32, and has a range."""
        for old in olds:
            if old not in self._integers:
                self.scale_of(old)

    def range_of(self, old: SSAValue) -> Range:
        """The range of an old value; raises Refused if it is not known."""
        if tensor_of(old).element_type != f32:
            raise Refused(f"it works on {tensor_of(old).element_type}")
        if (array := constant_array(old, self.store)) is not None:
            return (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        name = self.names[old]
        if name not in self.ranges:
            raise Refused(f'the range of "{name}" is not known')
        return self.ranges[name]

    def scale_of(self, old: SSAValue) -> Scale:
        """The scale for the range of an old value."""
        return self.scale_for(self.range_of(old))

    def define(self, old: SSAValue, new: Quantized, op: Operation | None, shift: int | None = None) -> None:
        """Say which integers stand for an old value; `op` computed it, None if its float was quantised."""
        self._integers[old] = new
        if (name := self.names.get(old)) is None:
            return  # a constant
        operation = "graph.quantize_linear" if op is None else op.name
        found = self.ranges.get(name, new.scale.range)
        self.layers.append(QuantizedLayer(name, operation, new.scale, found, new.value, shift))

    def skip(self, ops: list[Operation]) -> None:
        """Say that ops are rebuilt as part of another."""
        self._done.update(ops)

    # emission

    def add_at(self, op: GraphOp, part: str, location: LocationAttr) -> SSAValue:
        """Append an op on the way to the result at a `location`."""
        self.add(op, part)
        op.location = location
        return op.result

    def finish(self, op: GraphOp, old: SSAValue) -> SSAValue:
        """Append the op whose result stands for an old value."""
        self.add_at(op, "integers", derived(location_of_value(old), "integers"))
        op.result.name_hint = old.name_hint
        return op.result

    def moved(self, op: GraphOp, data: SSAValue) -> GraphOp:
        """A copy of an op that selects elements on other data, of its element type."""
        operands = [data, *(self.real(operand) for operand in op.operands[1:])]
        return rebuilt(op, operands, Tensor(tensor_of(data).element_type, tensor_of(op.result).get_shape()))
