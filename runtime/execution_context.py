# SPDX-License-Identifier: Apache-2.0
"""The memory of runs: arrays in, which are not copied, and arrays out, which may be given; at once, or in a thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock.dialects import alignment
from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.runtime.native import address_of
from penstock.runtime.tensor_specs import Signature, TensorSpec, writable_array

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Array = NDArray[Any]

Destinations: TypeAlias = Any
"""Where outputs go: an array for each, in order or by name, with None for a new one; or the array of the only one."""

Runner = Callable[[Sequence[Array], Sequence[Array]], None]
"""Runs a program once, on checked inputs, and writes to outputs that are dense arrays of the model's types."""


class Runnable(ABC):
    """What is called with arrays."""

    def __call__(self, *arrays: Any, out: Destinations = None, **named: Any) -> list[Array]:
        """
        Run once. Inputs are given in order, by name, or both; the outputs come in the model's order.

        An input is an array, or what has DLPack, `__array_interface__` or the buffer protocol; where it is dense and
        aligned, the program reads it where it is. The outputs are new arrays, or those of `out`.

        Raises UserError for a missing or unknown input, and for a wrong shape or a wrong element type.
        """
        return self.run(arrays, named, out=out)

    @abstractmethod
    def run(
        self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None, *, out: Destinations = None
    ) -> list[Array]:
        """As calling it, for names that are no Python identifiers or clash with parameters."""


class ExecutionContext(Runnable):
    """The memory of one run at a time of an engine; make one per thread. Threads that share one take turns in C."""

    def __init__(self, signature: Signature, runner: Runner):
        self._signature = signature
        self._runner = runner
        self._executor: ThreadPoolExecutor | None = None
        self._starting = Lock()

    def run(
        self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None, *, out: Destinations = None
    ) -> list[Array]:
        inputs, outputs = self._bind(arrays, named, out)
        self._runner(inputs, outputs)
        return outputs

    def enqueue(
        self, arrays: Sequence[Any] = (), named: Mapping[str, Any] | None = None, *, out: Destinations = None
    ) -> Future[list[Array]]:
        """
        As `run`, in a thread that the context keeps, after the runs that were enqueued before; the result of the future
        is the outputs. Until then the inputs must not change.

        What does not fit is refused at once; a fault of the program is the exception of the future.
        """
        inputs, outputs = self._bind(arrays, named, out)

        def run() -> list[Array]:
            self._runner(inputs, outputs)
            return outputs

        with self._starting:
            if self._executor is None:
                from concurrent.futures import ThreadPoolExecutor

                self._executor = ThreadPoolExecutor(1, "penstock")
            return self._executor.submit(run)

    def _bind(
        self, arrays: Sequence[Any], named: Mapping[str, Any] | None, out: Destinations
    ) -> tuple[list[Array], list[Array]]:
        inputs = self._signature.bind(arrays, named or {})
        specs = self._signature.outputs
        if self._signature.bounds:
            sizes = self._signature.sizes_of(inputs)
            specs = [spec.at(sizes) for spec in specs]
        if out is None:
            return inputs, [alignment.empty(spec.shape, spec.dtype) for spec in specs]
        # An input that is not dense is copied before the program runs.
        taken = [_extent(array) for array in inputs if array.flags.c_contiguous]
        outputs: list[Array] = []
        for spec, given in zip(specs, _in_order(self._signature, out), strict=True):
            if given is None:
                outputs.append(alignment.empty(spec.shape, spec.dtype))
                continue
            array = _destination(spec, given)
            start, end = own = _extent(array)
            for first, last in taken:
                if start < last and first < end:
                    raise UserError(f'the array for the output "{spec.name}" shares memory with another array')
            taken.append(own)
            outputs.append(array)
        return inputs, outputs


def _extent(array: Array) -> tuple[int, int]:
    """Where a dense array begins, and where it ends."""
    start = address_of(array)
    return start, start + array.nbytes


def _in_order(signature: Signature, out: Destinations) -> Sequence[Any]:
    """What is given for each output."""
    if type(out) is list and len(cast("list[Any]", out)) == len(signature.outputs):
        return cast("list[Any]", out)
    names = [spec.name for spec in signature.outputs]
    if isinstance(out, Mapping):
        by_name = cast("Mapping[str, Any]", out)
        for name in by_name:
            if name not in names:
                raise UserError(f'there is no output "{name}"', notes=[nearest_or_all(name, names, "outputs")])
        return [by_name.get(name) for name in names]
    given = cast("Sequence[Any]", out) if isinstance(out, list | tuple) else [out]
    if len(given) != len(names):
        raise UserError(f"the program has {len(names)} outputs, and {len(given)} arrays were given for them")
    return given


def _destination(spec: TensorSpec, given: Any) -> Array:
    if type(given) is np.ndarray and given.dtype == spec.dtype and given.shape == spec.shape and given.flags.carray:
        return given
    what = f'the array for the output "{spec.name}"'
    array = writable_array(what, given)
    if array.dtype != spec.dtype or array.shape != spec.shape:
        message = f"{what} has the shape {array.shape} and elements of type {array.dtype}"
        raise UserError(message, notes=[f"the output is {spec}"])
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise UserError(f"{what} is not contiguous, in row-major order and aligned")
    return array
