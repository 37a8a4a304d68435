# SPDX-License-Identifier: Apache-2.0
"""
PyTorch's compiler with Penstock behind it: `torch.compile(model, backend="penstock")`.

PyTorch's AOTAutograd makes of what its tracer caught functional graphs: those of inference, or one forward and one
backward. Each is compiled when it is first called, and anew for other sizes. A graph with what is not supported runs in
PyTorch, with a warning that names it. See https://docs.pytorch.org/docs/stable/torch.compiler_custom_backends.html.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import count
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import InputWarning, UserError, nearest_or_all
from penstock.lowering.from_torch import model_of_torch, tracing
from penstock.runtime.compiler import import_program
from penstock.runtime.engine import Engine, compile_program, require_backend
from penstock.runtime.engine_cache import EngineCache
from penstock.runtime.signature import signature_of
from penstock.runtime.tensor_specs import TensorSpec

__all__ = ["penstock"]

Array = NDArray[Any]
Run: TypeAlias = Callable[[Sequence[Any]], list[Any]]
"""From the arguments of a graph to its results."""

OPTIONS = ("machine", "backend", "pipeline", "machine_options", "threads", "freezing")
"""What `torch.compile(..., options={...})` takes: parameters of `penstock.compile`, and `freezing`."""

_numbers = count()
"""Of graphs, for messages."""


def penstock(graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any) -> Any:
    """
    The backend, as `torch.compile` calls it. `options` are keyword arguments of `penstock.compile`, and `freezing`:
    whether the values that parameters and buffers have at a first call are compiled into a graph for inference. They
    are looked at again only where their memory or PyTorch's count of their changes is another.

    Raises UserError for an unknown option or backend.
    """
    chosen = dict(options or {})
    for name in chosen:
        if name not in OPTIONS:
            raise UserError(f'there is no option "{name}"', notes=[nearest_or_all(name, OPTIONS, "options")])
    require_backend(chosen.get("backend", "native"))
    freezing = bool(chosen.pop("freezing", False))
    aot: Any = import_module("torch._functorch.aot_autograd")
    boxed: Any = import_module("functorch.compile").make_boxed_func

    def compiler(freezes: bool) -> Callable[[Any, Any], Any]:
        return lambda traced, _: boxed(CompiledGraph(traced, chosen, freezes))

    with tracing():
        return aot.aot_module_simplified(
            graph,
            example_inputs,
            fw_compiler=compiler(False),
            bw_compiler=compiler(False),
            inference_compiler=compiler(freezing),
        )


class CompiledGraph:
    """
    A functional graph of PyTorch's operators, called with tensors and sizes; an engine for each set of shapes.

    What it gives of its inputs as they are, and None, needs no engine.
    """

    def __init__(self, graph: Any, options: Mapping[str, Any], freezing: bool = False):
        self._torch: Any = import_module("torch")
        self._graph, self._options, self._freezing = graph, options, freezing
        self._number = next(_numbers)
        nodes: list[Any] = list(graph.graph.nodes)
        places = {node: index for index, node in enumerate(node for node in nodes if node.op == "placeholder")}
        self._returned = nodes[-1].args[0]
        self._outputs: list[int | None] = []
        """Of each output the input that it is; None for one that is computed, or for None."""
        self._computed: list[int] = []
        """Which outputs the engine computes."""
        for index, node in enumerate(self._returned):
            self._outputs.append(places.get(node))
            if node is not None and node not in places:
                self._computed.append(index)
        self._runs = EngineCache[Hashable, Run]()

    def __call__(self, *arguments: Any) -> list[Any]:
        return self._runs.get(tuple(map(self._key, arguments)), lambda: self._run_for(arguments))(arguments)

    def _is_frozen(self, argument: Any) -> bool:
        """Whether an input is a parameter or a buffer of the model, and its value is part of what is compiled."""
        is_static = isinstance(argument, self._torch.nn.Parameter) or hasattr(argument, "_dynamo_static_input_type")
        return self._freezing and is_static

    def _key(self, argument: Any) -> Hashable:
        if not isinstance(argument, self._torch.Tensor):
            return argument
        shape = (tuple(argument.shape), argument.dtype, argument.device.type)
        return (*shape, argument.data_ptr(), argument._version) if self._is_frozen(argument) else shape

    def _run_for(self, arguments: Sequence[Any]) -> Run:
        """What runs the graph on such arguments: an engine, or, with a warning, PyTorch where there can be none."""
        try:
            engine, inputs = self._engine(arguments)
        except UserError as error:
            message = f"graph {self._number} runs in PyTorch, not in Penstock: {error.message}"
            warnings.warn(InputWarning(message, notes=error.notes), stacklevel=2)
            return lambda given: list(self._graph(*given))

        def run(given: Sequence[Any]) -> list[Any]:
            results = engine.run([self._array(given[index]) for index in inputs])
            values = [None if source is None else given[source] for source in self._outputs]
            for index, result in zip(self._computed, results, strict=True):
                values[index] = self._tensor(result)
            return values

        return run

    def _engine(self, arguments: Sequence[Any]) -> tuple[Engine, list[int]]:
        torch = self._torch
        tensors = [index for index, each in enumerate(arguments) if isinstance(each, torch.Tensor)]
        for index in tensors:
            if (device := arguments[index].device.type) != "cpu":
                raise UserError(f"an input is on the device {device}")
        frozen = [index for index in tensors if self._is_frozen(arguments[index])]
        inputs = [index for index in tensors if index not in frozen]
        graph, computed = self._graph, self._computed

        module = torch.nn.Module()
        for index in frozen:
            module.register_buffer(f"frozen_{index}", arguments[index].detach())

        def forward(*given: Any) -> Any:
            """The graph with sizes and frozen tensors in it, and what it computes as results."""
            held = list(arguments)
            for index in frozen:
                held[index] = getattr(module, f"frozen_{index}")
            for index, value in zip(inputs, given, strict=True):
                held[index] = value
            results = graph(*held)
            return tuple(results[index] for index in computed)

        module.forward = forward
        examples = [arguments[index].detach() for index in inputs]
        # A thread of its own: what PyTorch sets for a thread that runs a compiled graph, its exporter cannot have.
        with ThreadPoolExecutor(1) as thread:
            model = thread.submit(model_of_torch, module, examples).result()
        program = import_program(model, {}, name=f"graph {self._number}", allow_nan=True)
        for index, spec in zip(computed, signature_of(program.module).outputs, strict=True):
            self._check(index, spec)
        return compile_program(program, **self._options), inputs

    def _check(self, index: int, spec: TensorSpec) -> None:
        """Raise UserError unless a computed output is of the shape that PyTorch says, as far as it is known."""
        node = self._returned[index]
        wanted = node.meta["val"]
        if not isinstance(wanted, self._torch.Tensor):
            raise UserError("an output is a size")
        sizes = [(size, given) for size, given in zip(wanted.shape, spec.shape, strict=False) if isinstance(size, int)]
        if len(wanted.shape) != len(spec.shape) or any(size != given for size, given in sizes):
            raise UserError(f"the result of {node.target} has the shape {spec.shape}, in PyTorch {tuple(wanted.shape)}")

    # Tensors and arrays share memory, but where a tensor is not dense.

    def _array(self, tensor: Any) -> Array:
        dense = tensor.detach().contiguous()
        if dense.dtype == self._torch.bfloat16:
            return dense.view(self._torch.int16).numpy().view(ml_dtypes.bfloat16)
        return dense.numpy()

    def _tensor(self, array: Array) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)
