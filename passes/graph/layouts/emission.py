"""Rebuilding an op in the form that was chosen for it."""

from __future__ import annotations

from math import prod
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import Tensor, tensor_of
from penstock.passes.graph.layouts.forms import Forms, image_name, shape_of
from penstock.passes.graph.layouts.rules import Choice, unchanged
from penstock.passes.graph.values import LAYOUT_ATTRIBUTE, derived
from penstock.runtime.interpreter.body import captured_values


def emit(forms: Forms, op: Operation, choice: Choice) -> None:
    """Append `op`, computed as `choice` says, to the block of the `forms`."""
    operands = [
        forms.get(value, need.order, need.letters)
        if need.sizes is None
        else forms.broadcast(value, need.order, need.sizes)
        for value, need in zip(op.operands, choice.needs, strict=True)
    ]
    if choice._replace(keeps_layout=False) == unchanged(op):
        # What the regions of an op read is not among its operands, and they read it as it was.
        values = {value: forms.get(value) for value in captured_values(op)}
        new = op.clone({**values, **dict(zip(op.operands, operands, strict=True))})
        if choice.keeps_layout:
            new.attributes[LAYOUT_ATTRIBUTE] = StringAttr(graph.NCHW)
        forms.block.add_op(new)
        for before, after in zip(op.results, new.results, strict=True):
            forms.define(before, after, choice.result)
    elif choice.is_product:
        assert isinstance(op, graph.GemmOp | graph.MatmulOp)
        _emit_product(forms, op, choice, operands)
    elif isinstance(op, graph.MatmulOp) and "trans_b" in choice.properties:
        _emit_gemm(forms, op, choice, operands)
    elif isinstance(op, graph.TransposeOp):
        # What is stored in another order only gives its dimensions other names.
        forms.define(op.result, operands[0], choice.result)
    else:
        _emit_in_order(forms, op, choice, operands)


def _emit_in_order(forms: Forms, op: Operation, choice: Choice, operands: list[SSAValue]) -> None:
    old = op.results[0]
    type = Tensor(tensor_of(old).element_type, choice.result.shape(shape_of(old)))
    new = op.__class__.create(
        operands=operands,
        result_types=[type],
        properties={**op.properties, **choice.properties},
        attributes=op.attributes.copy(),
    )
    location = op.location
    if choice.result.is_plain:
        pass
    elif (name := image_name(choice.result)) is None:
        location = derived(location, "permuted")
    elif "layout" not in new.properties:
        new.attributes[LAYOUT_ATTRIBUTE] = StringAttr(name)
    forms.define(old, forms.emit(new, location, old.name_hint), choice.result)


def _emit_gemm(forms: Forms, op: graph.MatmulOp, choice: Choice, operands: list[SSAValue]) -> None:
    """The rows of all matrices of `a` are those of one."""
    a, b = operands
    shape, result = shape_of(op.a), shape_of(op.result)
    trans_a, trans_b = (bool(choice.properties[key]) for key in ("trans_a", "trans_b"))
    if len(shape) > 2:
        rows = graph.ReshapeOp(a, [prod(shape[:-1]), shape[-1]])
        a = forms.emit(rows, derived(op.location, "rows"))
        if trans_a:
            a = forms.emit(graph.TransposeOp(a, perm=[1, 0]), derived(op.location, "columns"))
    gemm = graph.GemmOp(a, b, trans_a=trans_a, trans_b=trans_b, accumulator=op.accumulator)
    value = forms.emit(gemm, op.location, op.result.name_hint)
    if len(shape) > 2:
        value = forms.emit(graph.ReshapeOp(value, result), derived(op.location, "matrices"), op.result.name_hint)
    forms.define(op.result, value, choice.result)


def _emit_product(forms: Forms, op: graph.GemmOp | graph.MatmulOp, choice: Choice, operands: list[SSAValue]) -> None:
    """Rows are an image of one row, or of as many as the product has: the convolution has filters of one element."""
    x, w, *bias = operands
    filters = forms.emit(graph.ReshapeOp(w, [1, 1, *shape_of(w)]), derived(op.location, "filters"))
    layouts: dict[str, Any] = {**choice.properties}
    conv = graph.ConvOp(x, filters, *bias, accumulator=op.accumulator, **layouts)
    forms.define(op.result, forms.emit(conv, op.location, op.result.name_hint), choice.result)
