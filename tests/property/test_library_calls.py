# SPDX-License-Identifier: Apache-2.0
"""
Products of random shapes and kinds as calls of a library, in C and in the interpreter, against NumPy in f64, within the
rounding bound of Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from blas_machine import blas_machine
from hypothesis import given
from hypothesis import strategies as st
from in_c import needs_compiler
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import penstock
from penstock.lowering.to_c import emit_c
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module

Array = NDArray[Any]
make: Any = helper
as_tensor: Any = numpy_helper.from_array

SIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 48])
FACTOR = 8
"""Of the bound, which holds with a probability that grows with it."""


class Model:
    """A model with one product, and NumPy's result with the sum of magnitudes."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.declared: list[Any] = []
        self.inputs: list[Array] = []

    def value(self, name: str, shape: tuple[int, ...], *, may_be_constant: bool = False) -> Array:
        array = self.rng.standard_normal(shape).astype(np.float32)
        if may_be_constant and self.draw(st.booleans()):
            self.constants.append(as_tensor(array, name))
        else:
            self.declared.append(make.make_tensor_value_info(name, TensorProto.FLOAT, shape))
            self.inputs.append(array)
        return array

    def node(self, op: str, result: str, *operands: str, **attributes: Any) -> None:
        self.nodes.append(make.make_node(op, list(operands), [result], **attributes))

    def proto(self, shape: tuple[int, ...]) -> Any:
        result = make.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        graph = make.make_graph(self.nodes, "g", self.declared, [result], self.constants)
        return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


@st.composite
def models(draw: st.DrawFn) -> tuple[Any, list[Array], Array, Array]:
    """A model, its inputs, the result in f64, and the bound of its error."""
    model = Model(draw)
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    kind = draw(st.sampled_from(["product", "batch", "conv"]))
    if kind == "conv":
        size, stride = draw(st.sampled_from([1, 1, 3])), draw(st.integers(1, 2))
        pad = draw(st.sampled_from([0, size // 2]))
        shape = draw(st.integers(1, 2)), k, draw(st.integers(size, 8)), draw(st.integers(size, 8))
        x, w = model.value("a", shape), model.value("b", (n, k, size, size), may_be_constant=True)
        model.node("Conv", "p", "a", "b", strides=[stride, stride], pads=[pad] * 4)
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))).astype(float)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]
        factors, terms, steps = (windows, w.astype(float)), "nchwij,ocij->nohw", k * size * size
    else:
        trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
        batch = (draw(st.integers(1, 3)),) if kind == "batch" else ()
        if kind == "batch":
            trans_a = trans_b = False
        a = model.value("a", (*batch, *((k, m) if trans_a else (m, k))))
        b = model.value("b", (*batch, *((n, k) if trans_b else (k, n))), may_be_constant=True)
        if kind == "batch":
            model.node("MatMul", "p", "a", "b")
        else:
            model.node("Gemm", "p", "a", "b", transA=int(trans_a), transB=int(trans_b))
        factors = a.astype(float), b.astype(float)
        left, right = "km" if trans_a else "mk", "nk" if trans_b else "kn"
        outer = "q" if batch else ""
        terms, steps = f"{outer}{left},{outer}{right}->{outer}mn", k
    expected = np.einsum(terms, *factors)
    magnitude = np.einsum(terms, *map(np.abs, factors))
    if draw(st.booleans()):
        other = model.value("c", expected.shape, may_be_constant=True)
        model.node("Add", "q", "p", "c")
        model.node("Relu", "y", "q")
        expected, magnitude = np.maximum(expected + other, 0), magnitude + np.abs(other)
    else:
        model.node("Identity", "y", "p")
    bound = FACTOR * np.sqrt(steps + 2) * np.finfo(np.float32).eps * magnitude
    return model.proto(expected.shape), model.inputs, expected, bound


@examples(32)
@given(models(), st.integers(1, 2))
def test_calls_compute_products_up_to_rounding(case: tuple[Any, list[Array], Array, Array], threads: int) -> None:
    needs_compiler()
    model, inputs, expected, bound = case
    with TemporaryDirectory() as folder:
        machine = blas_machine(Path(folder))
        engine = penstock.compile(model, machine, pipeline="default, tile{rank=-1}", threads=threads)
        assert isinstance(engine, Engine)
        (ours,) = engine.run(inputs)
    (theirs,) = run_module(engine.module, inputs, engine.ctx.weights)
    assert (abs(ours - expected) <= bound).all()
    assert (abs(np.asarray(theirs) - expected) <= bound).all()
    named = any('library_call = "sgemm' in line for line in str(engine.module).splitlines())
    assert named == ("cblas_sgemm(" in emit_c(engine.module).source)
