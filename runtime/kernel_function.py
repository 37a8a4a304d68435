"""Kernels of the kernel language as functions on arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.context import make_context
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_text import SourceText, read_text
from penstock.lowering.to_text import module_text
from penstock.runtime.compiler import LoadedProgram, compile_module
from penstock.runtime.engine import Backend, Engine, compile_program

CACHED_ENGINES = 8
"""How many engines of a kernel are kept: the one that was not used for longest goes."""


class KernelFunction:
    """
    A kernel, called on arrays; its sizes are those of the arrays, and it is compiled once for each set of them.

    `kernel(x, y, BM=32)` sets constants by their names, and `kernel.on("gemmini-fp32")` is the same for a machine.
    """

    def __init__(
        self, file: KernelFile, name: str | None = None, machine: str | None = None, backend: Backend = "native"
    ):
        """The kernel of that name in a text, or the only one. Raises UserError."""
        self.file = file
        self.kernel = file.kernel(name)
        self.machine = machine
        self.backend: Backend = backend
        self._engines: OrderedDict[tuple[tuple[str, int], ...], Engine] = OrderedDict()

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.kernel.name

    def on(self, machine: str | None, backend: Backend = "native") -> KernelFunction:
        """The same kernel for a machine, or for the host."""
        return KernelFunction(self.file, self.name, machine, backend)

    def __call__(self, *arrays: Any, **constants: int) -> NDArray[Any] | tuple[NDArray[Any], ...]:
        """
        The result for some arguments, or all results if there are several.

        Raises UserError for arguments that do not fit, and for what is wrong with the kernel.
        """
        given = [np.asarray(array) for array in arrays]
        sizes = self.file.sizes_from_arguments(self.kernel, given, {}, constants)
        outputs = self.engine(sizes).run(given)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def engine(self, sizes: Mapping[str, int]) -> Engine:
        """The engine for some sizes and constants."""
        key = tuple(sorted(sizes.items()))
        if key not in self._engines:
            self._engines[key] = compile_program(self._program(sizes), machine=self.machine, backend=self.backend)
            while len(self._engines) > CACHED_ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(key)
        return self._engines[key]

    def mlir(self, level: str = "tensor", **sizes: int) -> str:
        """The IR at a level, for some sizes and constants. Raises UserError."""
        program = self._program(sizes)
        compile_module(program.module, program.ctx, self.machine, level)
        return module_text(program.ctx, program.module)

    def _program(self, sizes: Mapping[str, int]) -> LoadedProgram:
        module = self.file.module(self.kernel, sizes)
        return LoadedProgram(module, make_context(), Path(self.file.text.name))


def kernel(
    source: str | Path, name: str | None = None, *, machine: str | None = None, backend: Backend = "native"
) -> KernelFunction:
    """
    A kernel as a function on arrays, from a text of the kernel language or from the path of a `.pk` file, for a machine
    or for the host. `name` says which, if there are several. Raises UserError for what is wrong with the text.
    """
    is_path = isinstance(source, Path) or ("\n" not in source and source.endswith(".pk"))
    text = read_text(source) if is_path else SourceText("<kernel>", str(source))
    return KernelFunction(KernelFile(text), name, machine, backend)
