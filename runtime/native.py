# SPDX-License-Identifier: Apache-2.0
"""Machine code that was made of generated C, loaded: arrays in, arrays out. Nothing of the IR, nor of the C."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.dialects import alignment
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_bits import DType, same_bits, stored
from penstock.passes.toolchain import CompilerFault, build_library, load
from penstock.runtime.threads import require_at_most

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from penstock.lowering.to_c import CSource

Array = NDArray[Any]

FAULTS = {
    1: "division by zero",
    2: "an access that is out of bounds",
    3: "more iterations of a loop than there may be",
    4: "a cf.assert of the program does not hold",
    5: "a size that is not from 1 to its bound",
}
"""What the entry returns, in words."""


@dataclass(frozen=True)
class NativeCounters:
    """What the last run of a context did; bytes are those inside the windows of transfers."""

    transfers: int
    bytes_in: int
    """From off chip."""
    bytes_out: int
    """To off chip."""
    bytes_on_chip: int
    commands: int
    """Of intrinsics."""
    macs: int
    """Multiply-accumulates of intrinsics."""
    host_macs: int
    """Multiply-accumulates of structured ops on the host."""


_COUNTERS = tuple(NativeCounters.__dataclass_fields__)


class Parameter(Protocol):
    """An array that code takes: dense, in row-major order; the signs of integers do not count."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...


class Interface(Protocol):
    """What a caller knows of a program: what its functions are called after, and the arrays that it takes."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Parameter]: ...
    @property
    def weights(self) -> Sequence[Parameter]: ...
    @property
    def outputs(self) -> Sequence[Parameter]: ...
    @property
    def sizes(self) -> Sequence[tuple[str, int]]:
        """The sizes that each run gives, with their bounds."""
        ...


class Library(Protocol):
    """Functions by name, as ctypes knows them, in memory as long as it lives."""

    def __getitem__(self, name: str, /) -> Any: ...


class NativeContext:
    """The memory of one run at a time: arena and scopes. Contexts of one module may run at the same time."""

    def __init__(self, module: NativeModule, threads: int | None = None):
        """Start its threads, by default all that the code has; raises UserError for more, and if they do not start."""
        self.module = module
        size = module.context_bytes
        self._context = alignment.empty([size], np.dtype(np.uint8))
        self._context[: 8 * len(_COUNTERS)] = 0
        address = self._context.ctypes.data
        self._address = ctypes.c_void_p(address)
        self._inputs = Pointers(len(module.interface.inputs))
        self._outputs = Pointers(len(module.interface.outputs))
        self._lock = threading.Lock()
        module.start(self, address, self._context, threads)

    def __call__(self, inputs: Sequence[Array], weights: Sequence[Array] = ()) -> list[Array]:
        """
        Run once. Arrays come in the order of the program's arguments; the outputs are new arrays.

        A second thread waits until the first is done. Raises UserError for arrays of another number, shape or
        element type, and for a fault of the program.
        """
        if self.module.interface.sizes:
            raise UserError("the sizes of a run are needed: call it through an engine")
        outputs = [alignment.empty(spec.shape, spec.dtype) for spec in self.module.interface.outputs]
        self.run_into(outputs, inputs, self.module.bind(weights))
        return outputs

    def run_into(
        self, outputs: Sequence[Array], inputs: Sequence[Array], weights: BoundArrays, sizes: Sequence[int] = ()
    ) -> None:
        """
        As calling it, on weights that are bound, with the results in `outputs`: dense arrays of the right shapes and
        types, up to the signs of integers, none of which shares memory with another array. `sizes` are those that only
        a run knows.
        """
        module = self.module
        # Those that are copied have to live until the program is done.
        taken = checked_arrays("input", module.interface.inputs, inputs)
        with self._lock:
            self._inputs.set(taken)
            self._outputs.set(outputs)
            last = [(ctypes.c_int64 * len(sizes))(*sizes)] if sizes else []
            fault = module.entry(self._address, weights.pointers.start, self._inputs.start, self._outputs.start, *last)
        if fault:
            raise UserError(f"the program stopped: {FAULTS.get(fault, f'fault {fault}')}")

    @property
    def counters(self) -> NativeCounters:
        """What the last run did."""
        values = self._context[: 8 * len(_COUNTERS)].view(np.int64)
        return NativeCounters(*(int(value) for value in values))


class NativeModule:
    """A program as machine code; `library` has the functions that `interface` tells of."""

    def __init__(self, interface: Interface, library: Library):
        self.interface = interface
        self._library = library
        size = library[f"{interface.name}_context_size"]
        size.restype, size.argtypes = ctypes.c_size_t, []
        self.context_bytes = int(size())
        self.entry: Any = library[f"{interface.name}_run"]
        self.entry.restype = ctypes.c_int
        self.entry.argtypes = [ctypes.c_void_p] * (5 if interface.sizes else 4)
        self.threads = 1
        """How many threads run a parallel loop, at most."""
        if hasattr(library, f"{interface.name}_start"):
            self._start, self._stop = library[f"{interface.name}_start"], library[f"{interface.name}_stop"]
            self._start.argtypes, self._stop.argtypes = [ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
            self._start.restype = ctypes.c_int
            count = library[f"{interface.name}_threads"]
            count.restype = ctypes.c_int
            self.threads = int(count())
        self._own: NativeContext | None = None

    def new_context(self, threads: int | None = None) -> NativeContext:
        """Memory for runs of its own, and threads; make one per thread that runs."""
        return NativeContext(self, threads)

    def start(self, context: NativeContext, address: int, memory: Array, threads: int | None) -> None:
        """Start the threads of a context, which end with it."""
        count = require_at_most(self.threads if threads is None else threads, self.threads)
        if self.threads == 1:
            return
        if fault := self._start(address, count):
            raise UserError(f"{count} threads cannot be started: {os.strerror(fault)}")
        # The memory lives as long as the threads that use it.
        weakref.finalize(context, _stop_threads, self._stop, address, memory)

    def bind(self, weights: Sequence[Array]) -> BoundArrays:
        """The weights, in order, for `run_into`; raises UserError where they do not fit."""
        return BoundArrays("weight", self.interface.weights, weights)

    def run(self, inputs: Sequence[Array], weights: Sequence[Array] = ()) -> list[Array]:
        """Run once in a context that the module keeps."""
        if self._own is None:
            self._own = self.new_context()
        return self._own(inputs, weights)

    @property
    def counters(self) -> NativeCounters:
        """What the last run in that context did."""
        assert self._own is not None, "nothing was run"
        return self._own.counters


def _stop_threads(stop: Callable[[int], None], address: int, memory: Array) -> None:
    stop(address)


class BoundArrays:
    """Arrays as the code takes them (see `checked_arrays`), and where they are."""

    def __init__(self, what: str, specs: Sequence[Parameter], arrays: Sequence[Array]):
        """Raise UserError for arrays of another number, shape or element type."""
        self.arrays = checked_arrays(what, specs, arrays)
        self.pointers = Pointers(len(specs))
        self.pointers.set(self.arrays)


class Pointers:
    """An array of pointers for code to read."""

    def __init__(self, count: int):
        self._array = (ctypes.c_void_p * max(1, count))()
        self.start = ctypes.cast(self._array, ctypes.c_void_p)

    def set(self, arrays: Sequence[Array]) -> None:
        """Let them be where these arrays are, which the caller keeps."""
        own = self._array
        for place, array in enumerate(arrays):
            own[place] = address_of(array)


SPLIT_LENGTH = 40_000
"""Characters of C from which on several files, compiled at the same time, are faster than one."""


def build(source: CSource) -> Path:
    """
    The shared library of a program, built unless the cache has it.

    Raises UserError without a working C compiler, for a cache that others may write, and for what the compiler refuses
    of what the machine says, and CompilerFault where it refuses the program, whose files are kept for a day.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    units = source.units(cores if len(source.source) >= SPLIT_LENGTH else 1)
    files = [f"{source.name}.c"] if len(units) == 1 else [f"{source.name}_{n}.c" for n in range(len(units))]
    # How the program is cut does not change what it does, so it is not part of the key.
    content = f"{source.header}\0{source.source}"
    sources = dict(zip(files, units, strict=True))
    headers = {source.header_name: source.header}
    try:
        return build_library(source.name, sources, headers, content=content, options=source.options)
    except CompilerFault:
        if source.code is not None:
            from penstock.runtime.device_check import require_code

            require_code(source.code)
        raise


def load_native(module: ModuleOp) -> NativeModule:
    """
    Emit, build and load the C of a module at loop or accel level.

    Raises UserError for what C cannot hold and without a C compiler.
    """
    from penstock.lowering.to_c import emit_c

    source = emit_c(module)
    return NativeModule(source, load(build(source)))


def checked_arrays(what: str, specs: Sequence[Parameter], arrays: Sequence[Array]) -> list[Array]:
    """
    Arrays as the code takes them, copied only where they are not dense, aligned and as stored.

    Raises UserError for arrays of another number, shape or element type.
    """
    if len(arrays) != len(specs):
        raise UserError(f"the program takes {len(specs)} {what}s, and {len(arrays)} were given")
    return [*map(_checked, repeat(what), specs, arrays)]


def _checked(what: str, spec: Parameter, array: Array) -> Array:
    # What is as the code takes it, which most arrays are at each call, takes no longer than it must.
    if type(array) is not np.ndarray or array.dtype != spec.dtype or array.shape != spec.shape:
        array = stored(np.asarray(array))
        # Integers are signless: unsigned arrays are taken as they are.
        if not same_bits(array.dtype, spec.dtype) or not array.dtype.isnative or not _fits(array.shape, spec.shape):
            raise UserError(
                f'the {what} "{spec.name}" has the shape {array.shape} and elements of type {array.dtype}, and the '
                f"program takes {spec.shape} and {spec.dtype}"
            )
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy(order="C")


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array has a shape, in which negative sizes are known only in a run."""
    return len(shape) == len(wanted) and all(size == own or own < 0 for size, own in zip(shape, wanted, strict=True))


_HEADER_BYTES = object.__basicsize__


def _peeked(array: Array) -> int:
    return ctypes.c_size_t.from_address(id(array) + _HEADER_BYTES).value


def _can_peek() -> bool:
    """Whether the first field of an array is where its elements are, as extensions in C rely on."""
    if sys.implementation.name != "cpython":
        return False
    array = np.zeros(8)
    return all(_peeked(each) == each.ctypes.data for each in (array, array[3:]))


# `PyArrayObject` of NumPy's C API begins with the address. To ask Python for it takes longer than a small program.
address_of: Callable[[Array], int] = _peeked if _can_peek() else lambda array: array.ctypes.data
"""Where the elements of an array begin, which is asked for at every call."""
