# SPDX-License-Identifier: Apache-2.0
"""Random integer kernels as instructions of VTA: bit for bit the tensor level, in any order that tokens permit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sampling import examples
from vta_programs import Kernel, convolution, matmul, residual_add
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.runtime.compiler import compile_module
from penstock.runtime.signature import signature_of
from penstock.runtime.vta import emit, replay


@st.composite
def convolutions(draw: st.DrawFn) -> Kernel:
    kernel = draw(st.sampled_from([1, 2, 3]))
    size = draw(st.tuples(st.integers(kernel, 11), st.integers(kernel, 11)))
    return convolution(
        size,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        kernel=kernel,
        stride=draw(st.integers(1, 2)),
        pad=draw(st.integers(0, kernel - 1)),
        batch=draw(st.integers(1, 2)),
    )


anywhere = st.one_of(convolutions(), st.builds(matmul, st.integers(1, 70), st.integers(1, 5), st.integers(1, 9)))
images = st.tuples(st.integers(1, 2), st.integers(1, 20), st.integers(1, 20), st.integers(1, 6))
kernels = st.one_of(
    st.tuples(anywhere, st.sampled_from(["vta-pynq", "vta-rtl"])),
    st.tuples(st.builds(residual_add, images), st.just("vta-fsim")),
)


@given(kernels, st.integers(0, 99))
@examples(8, suppress_health_check=[HealthCheck.too_slow])
def test_a_random_kernel_runs_as_instructions(kernel_and_machine: tuple[Kernel, str], seed: int) -> None:
    kernel, machine = kernel_and_machine
    ctx = make_context()
    module = Parser(ctx, kernel.text).parse_module()
    reference = module.clone()
    compile_module(module, ctx, machine, "accel")
    inputs = kernel.draw(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        emit(path, module, reference, ctx.weights, signature_of(reference), inputs)
        found = replay(path, seed=seed)
    assert found.launches > 0
    np.testing.assert_array_equal(found.outputs["y"], kernel.expected(inputs))
