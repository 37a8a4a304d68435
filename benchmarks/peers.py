# SPDX-License-Identifier: Apache-2.0
"""What generated C is measured against: other libraries that run a model, on inputs and outputs that are bound."""

from __future__ import annotations

import ctypes
import importlib
import io
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.networks import Feeds
from penstock.dialects.files import temporary_folder
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_names import NATIVE
from penstock.passes.toolchain import find_compiler, load_code

Run = Callable[[], Sequence[Any]]
"""Runs a model once, and returns its outputs."""


def onnxruntime(model: Any, feeds: Feeds, *, threads: int) -> Run:
    """With all of its optimisations; inputs and outputs are bound, so that a run copies none."""
    library: Any = importlib.import_module("onnxruntime")  # has no types
    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = library.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    kept = {name: library.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    for name, value in kept.items():
        binding.bind_ortvalue_input(name, value)
    values = [library.OrtValue.ortvalue_from_numpy(array) for array in session.run(None, feeds)]
    for spec, value in zip(session.get_outputs(), values, strict=True):
        binding.bind_ortvalue_output(spec.name, value)
    outputs = [value.numpy() for value in values]

    def run() -> Sequence[Any]:
        session.run_with_iobinding(binding)
        return outputs

    return run


def openvino(model: Any, feeds: Feeds, *, threads: int) -> Run | None:
    """In f32; None where it is not installed."""
    if find_spec("openvino") is None:
        return None
    library: Any = importlib.import_module("openvino")
    core = library.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(core.read_model(io.BytesIO(model.SerializeToString())), "CPU", settings)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, library.Tensor(array, shared_memory=True))
    outputs = [request.get_output_tensor(place).data for place in range(len(compiled.outputs))]

    def run() -> Sequence[Any]:
        request.infer()
        return outputs

    return run


def numpy_product(model: Any, feeds: Feeds) -> Run:
    """The product of a model, by NumPy's BLAS, which has as many threads as OPENBLAS_NUM_THREADS said at first."""
    from onnx import numpy_helper

    factors = [*feeds.values(), *(numpy_helper.to_array(each) for each in model.graph.initializer)]
    out = np.empty((factors[0].shape[0], factors[1].shape[1]), np.float32)

    def run() -> Sequence[Any]:
        np.matmul(*factors, out=out)
        return [out]

    return run


CHAINS = 12
"""Sums at once: more than two units of four or five cycles need, and fewer than there are registers."""


@cache
def multiply_adds() -> tuple[Run, float]:
    """What does fused multiply-adds in the vector registers of this CPU, and nothing else, and how many flops."""
    processor = load_machine(NATIVE).processor()
    width, times = 16 if processor is None or processor.vector is None else processor.vector_bytes, 40_000
    names = [f"sum{number}" for number in range(CHAINS)]
    lines = (
        f"typedef float vector __attribute__((vector_size({width})));",
        "float multiply_adds(vector *from, long times) {",
        "  vector x = from[0], y = from[1];",
        # Of sums that began alike the compiler would keep one.
        *(f"  vector {name} = from[{2 + number}];" for number, name in enumerate(names)),
        "  for (long i = 0; i < times; i++) {",
        *(f"    {name} = {name} * x + y;" for name in names),
        "  }",
        f"  return ({' + '.join(names)})[0];",
        "}",
    )
    with temporary_folder() as folder:
        (folder / "peak.c").write_text("\n".join(lines))
        flags = ("-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared")
        done = find_compiler().run((*flags, "-o", "peak.so", "peak.c"), folder)
        assert done.returncode == 0, done.stderr
        function = load_code("peak", (folder / "peak.so").read_bytes()).multiply_adds
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_float
    memory = np.zeros((CHAINS + 3) * width, np.int8)  # as many vectors as are read, and room to align them
    start = memory.ctypes.data + -memory.ctypes.data % width
    return lambda: [function(start, times), memory], 2.0 * times * CHAINS * width / 4
