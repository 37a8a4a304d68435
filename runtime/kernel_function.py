# SPDX-License-Identifier: Apache-2.0
"""Kernels of the kernel language as functions on arrays."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Attribute

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_types import numpy_dtype
from penstock.lowering.from_kernel.lower import KernelFile, kernel_file
from penstock.lowering.from_kernel.printer import print_head
from penstock.lowering.from_kernel.scalars import element_called
from penstock.lowering.from_text import SourceText
from penstock.lowering.to_text import module_text
from penstock.passes.graph.gradient import GraphGradientPass
from penstock.runtime.compiler import LoadedProgram, compile_module
from penstock.runtime.engine import Backend, Engine, compile_program
from penstock.runtime.engine_cache import EngineCache
from penstock.runtime.execution_context import ExecutionContext

_Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""Sizes and constants by their names, which are sorted."""


class KernelFunction:
    """
    A kernel, called on arrays; its sizes are those of the arrays, and it is compiled once for each set of them.

    `kernel(x, y, BM=32)` sets constants by their names, `kernel.on("gemmini-fp32")` is the same for a machine, and
    `kernel.gradient()` computes its derivatives. It may be called from several threads, and pickled.
    """

    def __init__(
        self,
        file: KernelFile,
        name: str | None = None,
        machine: str | None = None,
        backend: Backend = "native",
        *,
        wrt: tuple[str | int, ...] | None = None,
    ):
        """
        The kernel of that name in a text, or the only one; with `wrt`, its derivatives by these parameters. Raises
        UserError.
        """
        self.file = file
        self.kernel = file.kernel(name)
        self.machine = machine
        self.backend: Backend = backend
        self.wrt = wrt
        self._engines = EngineCache[_Sizes, Engine]()
        self._of_thread = threading.local()

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.kernel.name

    def __repr__(self) -> str:
        where = "" if self.machine is None else f" on {self.machine}"
        by = "" if self.wrt is None else f" derived by {', '.join(map(str, self.wrt)) or 'all parameters'}"
        return f"<{print_head(self.kernel)}{by}{where}>"

    def __reduce__(self) -> tuple[Any, ...]:
        text = self.file.text
        return _restored, (text.name, text.text, text.first_line, self.name, self.machine, self.backend, self.wrt)

    def on(self, machine: str | None, backend: Backend = "native") -> KernelFunction:
        """The same kernel for a machine, or for the host."""
        return KernelFunction(self.file, self.name, machine, backend, wrt=self.wrt)

    def gradient(self, *wrt: str | int) -> KernelFunction:
        """
        What computes the derivatives of the kernel by the parameters `wrt`, by number or name, or by all of floats: of
        its arguments, and then the adjoint of each result of floats. See the pass `graph-gradient`.

        Raises UserError for what is a gradient already.
        """
        if self.wrt is not None:
            notes = ["a second derivative is one of a graph: graph-gradient takes what graph-gradient has written"]
            raise UserError(f'this is the gradient of "{self.name}" already', loc=self._place, notes=notes)
        return KernelFunction(self.file, self.name, self.machine, self.backend, wrt=wrt)

    def __call__(self, *arrays: Any, **constants: int) -> NDArray[Any] | tuple[NDArray[Any], ...]:
        """
        The result for some arguments, or all results if there are several.

        Raises UserError for arguments that do not fit, and for what is wrong with the kernel.
        """
        for name in constants.keys() & {each.name for each in self.kernel.parameters}:
            notes = ["arguments stand in their order; sizes and constants are set by name"]
            raise UserError(f'"{name}" is a parameter, and is not given by its name', loc=self._place, notes=notes)
        types = [element_called(each.element) for each in self.kernel.parameters]
        given = [_array(each, type) for each, type in zip_longest(arrays, types[: len(arrays)])]
        sizes = self.file.sizes_from_arguments(self.kernel, given, {}, constants)
        outputs = self._context(sizes).run(given)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @property
    def _place(self) -> str:
        return self.file.place(self.kernel.at)

    def engine(self, sizes: Mapping[str, int]) -> Engine:
        """The engine for some sizes and constants. It runs in one thread at a time: each takes a context of it."""

        def make() -> Engine:
            return compile_program(self._program(sizes), machine=self.machine, backend=self.backend)

        return self._engines.get(_key(sizes), make)

    def _context(self, sizes: Mapping[str, int]) -> ExecutionContext:
        """The memory that this thread runs the engine for some sizes in."""
        if not hasattr(self._of_thread, "contexts"):
            self._of_thread.contexts = EngineCache[_Sizes, ExecutionContext]()
        contexts: EngineCache[_Sizes, ExecutionContext] = self._of_thread.contexts
        return contexts.get(_key(sizes), lambda: self.engine(sizes).context())

    def mlir(self, level: str = "tensor", **sizes: int) -> str:
        """The IR at a level, for some sizes and constants. Raises UserError."""
        program = self._program(sizes)
        compile_module(program.module, program.ctx, self.machine, level)
        return module_text(program.ctx, program.module)

    def _program(self, sizes: Mapping[str, int]) -> LoadedProgram:
        module, ctx = self.file.module(self.kernel, sizes), make_context()
        if self.wrt is not None:
            GraphGradientPass(wrt=self.wrt, replace=True).apply(ctx, module)
        return LoadedProgram(module, ctx, Path(self.file.text.name))


def _array(given: Any, element: Attribute | None) -> NDArray[Any]:
    """An argument as an array; a number of Python takes the type of the parameter, if it is of its kind and fits."""
    if element is None or not _is_of_its_kind(given, element):
        return np.asarray(given)
    try:
        with np.errstate(over="raise"):
            dtype = numpy_dtype(element)
            return np.asarray(given, dtype) if dtype.kind in "bi" else np.asarray(float(given)).astype(dtype)
    except (OverflowError, FloatingPointError):
        return np.asarray(given)


def _is_of_its_kind(given: Any, element: Attribute) -> bool:
    if isinstance(element, IntegerType):
        return type(given) is (bool if element == i1 else int)
    return type(given) in (int, float)


def _key(sizes: Mapping[str, int]) -> _Sizes:
    return tuple(sorted(sizes.items()))


def _restored(
    file: str, text: str, line: int, name: str, machine: str | None, backend: Backend, wrt: tuple[str | int, ...] | None
) -> KernelFunction:
    return KernelFunction(KernelFile(SourceText(file, text, line)), name, machine, backend, wrt=wrt)


def kernel(
    source: str | Path, name: str | None = None, *, machine: str | None = None, backend: Backend = "native"
) -> KernelFunction:
    """
    A kernel as a function on arrays, from a text of the kernel language or from the path of a `.pk` file, for a machine
    or for the host. `name` says which, if there are several. Raises UserError for what is wrong with the text.
    """
    return KernelFunction(kernel_file(source), name, machine, backend)
