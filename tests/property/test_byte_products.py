# SPDX-License-Identifier: Apache-2.0
"""
Convolutions of bytes on a host with an intrinsic for their products, in C: against the interpreter, which multiplies
signed bytes, bit for bit, and against NumPy in 64-bit integers, up to one step; over random shapes, windows, zero
points and signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from byte_products import convolved
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from sampling import examples
from xdsl.dialects.linalg.ops import GenericOp

import penstock
from penstock.runtime.compiler import compile_module, load_input

MACHINE = "host-avx512-vnni"

Array = NDArray[Any]
make: Any = helper
as_tensor: Any = numpy_helper.from_array


@dataclass(frozen=True)
class Case:
    """A convolution of bytes whose result is rounded to bytes."""

    channels: int
    filters: int
    size: tuple[int, int]
    kernel: int
    stride: int
    pads: tuple[int, int, int, int]
    groups: int
    signed: tuple[bool, bool]
    zeros: tuple[int, int]
    seed: int

    @property
    def image(self) -> Array:
        x = _bytes(np.random.default_rng(self.seed), (1, self.channels, *self.size), self.signed[0])
        x[0, 0] = np.iinfo(x.dtype).max  # many of the largest products in one sum
        return x

    @property
    def constants(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed + 1)
        w = _bytes(rng, (self.filters, self.channels // self.groups, self.kernel, self.kernel), self.signed[1])
        w[0] = np.iinfo(w.dtype).min
        zeros = [np.asarray(zero, array.dtype) for zero, array in zip(self.zeros, (self.image, w), strict=True)]
        constants = {
            "xs": np.asarray(0.02, np.float32),
            "xz": zeros[0],
            "w": w,
            "ws": rng.uniform(1e-4, 1e-2, self.filters).astype(np.float32),
            "wz": np.full(self.filters, zeros[1]) if self.signed[1] else zeros[1],
            "ys": np.asarray(0.5, np.float32),
            "yz": np.asarray(3, np.uint8),
            "b": rng.integers(-5000, 5000, self.filters).astype(np.int32),
        }
        if not self.signed[1]:
            constants["ws"] = np.asarray(0.003, np.float32)
        return constants

    @property
    def window(self) -> dict[str, Any]:
        return {"strides": [self.stride] * 2, "pads": list(self.pads), "group": self.groups}

    def expected(self) -> Array:
        """In 64-bit integers, scaled and rounded once."""
        of = self.constants
        x, w = self.image.astype(np.int64) - self.zeros[0], of["w"].astype(np.int64) - self.zeros[1]
        sums = convolved(x, w, **self.window) + of["b"].reshape(-1, 1, 1)
        factors = of["xs"] * of["ws"] / of["ys"]
        return np.clip(np.rint(sums * factors.reshape(-1, 1, 1)) + of["yz"], 0, 255)

    def model(self) -> ModelProto:
        constants = self.constants
        node = make.make_node(
            "QLinearConv",
            ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"],
            ["y"],
            **self.window,
        )
        counts = [
            (size + self.pads[dim] + self.pads[dim + 2] - self.kernel) // self.stride + 1
            for dim, size in enumerate(self.size)
        ]
        kind = TensorProto.INT8 if self.signed[0] else TensorProto.UINT8
        graph = make.make_graph(
            [node],
            "layer",
            [make.make_tensor_value_info("x", kind, self.image.shape)],
            [make.make_tensor_value_info("y", TensorProto.UINT8, [1, self.filters, *counts])],
            [as_tensor(array, name) for name, array in constants.items()],
        )
        return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


def _bytes(rng: np.random.Generator, shape: tuple[int, ...], signed: bool) -> Array:
    bounds = np.iinfo(np.int8 if signed else np.uint8)
    return rng.integers(bounds.min, bounds.max, shape, bounds.dtype, endpoint=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kernel, signed = draw(st.sampled_from((1, 2, 3))), draw(st.tuples(st.booleans(), st.booleans()))
    groups = draw(st.sampled_from((1, 1, 1, 2, 48)))
    pad = st.integers(0, kernel - 1)
    zeros = tuple(draw(st.sampled_from((0, 5, -128, 127) if has_sign else (0, 5, 128, 255))) for has_sign in signed)
    return Case(
        channels=draw(st.sampled_from((1, 3, 4, 6, 8, 12, 20, 64))) if groups == 1 else 48,
        filters=draw(st.sampled_from((5, 8, 16, 24, 32, 48, 80))) if groups == 1 else 48,
        size=(draw(st.integers(kernel, 9)), draw(st.integers(kernel, 20))),
        kernel=kernel,
        stride=draw(st.sampled_from((1, 2))),
        pads=(draw(pad), draw(pad), draw(pad), draw(pad)),
        groups=groups,
        # onnxruntime has one zero point for weights without a sign.
        signed=signed,
        zeros=(zeros[0], 0 if signed[1] else zeros[1]),
        seed=draw(st.integers(0, 99)),
    )


@examples(24)
@given(cases())
def test_convolutions_of_bytes_are_those_of_the_interpreter(case: Case) -> None:
    model, x = case.model(), case.image
    (found,) = penstock.compile(model, MACHINE)(x)
    (expected,) = penstock.compile(model, backend="interpreter")(x)
    assert np.array_equal(found, expected)
    # A step apart where a quotient is about a half.
    assert np.abs(found - case.expected()).max() <= 1


def test_an_intrinsic_of_the_host_computes_them() -> None:
    case = Case(64, 48, (7, 7), 3, 1, (1, 1, 1, 1), 1, (True, True), (0, 0), 0)
    program = load_input(case.model())
    compile_module(program.module, program.ctx, MACHINE, until="loop")
    calls = [op.library_call for op in program.module.walk() if isinstance(op, GenericOp) and op.library_call]
    assert [call.data for call in calls] == ["vpdpbusd_zmm"]
