# SPDX-License-Identifier: Apache-2.0
"""What `penstock show` prints of a network, read and lowered again, computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.utils.hints import isa
from zoo import NETWORKS

from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_kernel.printer import print_source
from penstock.lowering.from_kernel.syntax import Source
from penstock.lowering.from_text import SourceText
from penstock.lowering.to_kernel import kernel_of
from penstock.passes.analysis.kernels import kernels
from penstock.runtime.compiler import import_program
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

LARGE = 2_000_000
"""Elements of arguments above which a kernel is not run here."""


def text_of(kernel: FuncOp) -> str | None:
    """A kernel as text; None for one without a form."""
    try:
        return print_source(Source((kernel_of(kernel),)))
    except UserError:
        return None


def require_same(kernel: FuncOp, text: str) -> None:
    types = [type for type in kernel.function_type.inputs if isa(type, TensorType)]
    if sum(int(np.prod(type.get_shape())) for type in types) > LARGE:
        return
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-3, 4, type.get_shape()).astype(numpy_dtype(type.element_type)) for type in types]
    alone = kernel.clone()
    alone.sym_name, alone.sym_visibility = StringAttr("main"), None
    file = KernelFile(SourceText("shown.pk", text))
    found = run_module(file.module(file.kernel(), {}), inputs, WeightStore())
    for ours, theirs in zip(found, run_module(ModuleOp([alone]), inputs, WeightStore()), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes(), text


@pytest.mark.parametrize("network", sweep(NETWORKS, ("int8_cnn", "lstm")))
def test_a_shown_kernel_computes_what_it_was_made_from(network: str) -> None:
    program = import_program(NETWORKS[network](small=True), {}, name=network)
    run_passes(program.ctx, program.module, read_pipeline(",".join([*pipeline("graph", None), "graph-to-tensor"])))
    all_kernels = list(kernels(program.module))
    texts = [text_of(kernel) for kernel in all_kernels]
    # What has loops of its own, as attention, has no form.
    assert texts.count(None) <= 1
    for kernel, text in zip(all_kernels, texts, strict=True):
        if text is not None:
            require_same(kernel, text)
