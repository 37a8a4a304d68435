# SPDX-License-Identifier: Apache-2.0
"""Programs as files: the IR and the weights beside it."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import InputWarning, some_of
from penstock.dialects.element_bits import stored
from penstock.dialects.files import whole_file, write_whole
from penstock.dialects.graph.dims import AtMost
from penstock.lowering.to_c import GENERATED, CSource
from penstock.lowering.to_c.folder import folder_texts, weight_offsets, weights_name
from penstock.lowering.to_text import located_text, module_text
from penstock.passes.analysis.kernels import HOST, host_reasons, is_unused, machine_of, partition
from penstock.runtime.compiler import (
    LoadedProgram,
    bind_program,
    import_program,
    load_input,
    load_kernel,
)
from penstock.runtime.folders import write_folder
from penstock.runtime.signature import signature_of
from penstock.runtime.symbolic_dims import open_dims, require_bound
from penstock.runtime.tensor_specs import BoundDims
from penstock.runtime.weights import carry_weights
from penstock.tools.arguments import read_bindings, read_dims, read_values, say
from penstock.tools.tensors import GivenTensors
from penstock.tools.text import write_output


def load_bound(args: argparse.Namespace, kernel: str | None, *, takes_bounds: bool = False) -> LoadedProgram:
    """
    Load the model, IR or `kernel` of `args.model`; raises UserError for dimensions that are still open, or have only a
    bound, which the compiler `takes_bounds` of.
    """
    program = load_given(args, kernel)
    require_bound(program.module, str(program.path), takes_bounds=takes_bounds)
    return program


def load_given(args: argparse.Namespace, kernel: str | None) -> LoadedProgram:
    """Load the model, IR or `kernel` of `args.model`."""
    dims, values = read_bindings(args.dim), read_values(args.value)
    return load_input(
        args.model,
        dims=dims,
        values=values,
        allow_nan=args.allow_nan,
        max_trips=args.max_trips,
        kernel=kernel,
        kernels=args.kernels,
    )


def load_for_inputs(args: argparse.Namespace, given: GivenTensors, *, takes_bounds: bool = False) -> LoadedProgram:
    """
    Load the model or IR of `args.model` for a run on the inputs `given`.

    The sizes of symbolic dimensions, and of a kernel, are taken from the inputs, and so are, for a model, the values of
    those that only feed shapes and the like; `given` is left with those that the program still takes. Raises UserError
    where two sizes of one dimension differ, and for dimensions that are still open, or have only a bound, unless the
    caller `takes_bounds`.
    """
    bindings, values = read_bindings(args.dim), read_values(args.value)
    path = Path(args.model)
    if any(isinstance(each, AtMost) for each in bindings.values()):
        return load_bound(args, args.kernel, takes_bounds=takes_bounds)
    dims = read_dims(args.dim)
    if path.suffix == ".pk" and not values:
        return load_kernel(path, dims, args.kernel, arguments=(given.ordered, given.named))
    if path.suffix != ".onnx" or not (given.ordered or given.named):
        if path.suffix == ".onnx" or values:
            program = load_given(args, args.kernel)
        else:
            program = _load_text(path, dims, given, args.kernels)
        return _ready(program, given, takes_bounds=takes_bounds)
    from penstock.lowering.from_kernel.lower import kernel_file
    from penstock.lowering.from_onnx.model import load_model
    from penstock.runtime.specialize import Specialiser, with_values

    loaded = with_values(load_model(path), values, dims, str(path))
    specialiser = Specialiser(loaded, [kernel_file(each) for each in args.kernels], str(path))
    # Inputs that do not fit in number, name or rank are left for the check against the signature, which says so.
    fitted = specialiser.fit(given.ordered, given.named, dims)
    model = specialiser.with_constants(fitted.constants)
    given.ordered[:] = fitted.ordered
    given.named.clear()
    given.named.update(fitted.named)
    program = import_program(
        model,
        fitted.dims,
        name=str(path),
        allow_nan=args.allow_nan,
        max_trips=args.max_trips,
        kernels=args.kernels,
    )
    return _ready(program, given)


def _ready(program: LoadedProgram, given: GivenTensors, *, takes_bounds: bool = False) -> LoadedProgram:
    """The program, whose dimensions are bound. Inputs that do not fit are told first: they may be why one is open."""
    if (given.ordered or given.named) and open_dims(program.module):
        signature_of(program.module).bind(given.ordered, given.named)
    require_bound(program.module, str(program.path), takes_bounds=takes_bounds)
    return program


def _load_text(path: Path, dims: Mapping[str, int], given: GivenTensors, kernels: Sequence[str]) -> LoadedProgram:
    """Load a file of IR, and bind what is open as `dims` and the inputs say."""
    program = load_input(path, kernels=kernels)
    if dims or open_dims(program.module):
        signature = signature_of(program.module)
        bound = signature.dims_of(given.ordered, given.named, BoundDims.by_hand(dims))
        bind_program(program, bound.sizes)
    return program


def say_remarks(args: argparse.Namespace, module: ModuleOp) -> None:
    """Say which locals of the kernels of a program are off chip that could be on it, or should be, and why."""
    from penstock.passes.analysis.memory.stated_scopes import off_chip_remarks

    for line in off_chip_remarks(module):
        say(args, line)


def warn_unused(module: ModuleOp, path: str | Path) -> None:
    """Issue a warning where the machine computes nothing of a lowered program, with what it lacks for that."""
    target = machine_of(module)
    if target is not None and is_unused(module):
        message = f'nothing runs on the machine "{target.machine_name}"'
        warnings.warn(InputWarning(message, loc=str(path), notes=unused_notes(module)), stacklevel=2)


def unused_notes(module: ModuleOp) -> list[str]:
    """Return what the host runs of a program, and why: a note for each reason, the most frequent first."""
    placements = partition(module)
    names = ", ".join(some_of([placement.kernel for placement in placements if placement.device == HOST]))
    reasons = host_reasons(placements)
    return [
        f"the host runs {names}" if names else "@main calls no kernel",
        *some_of([f"because {each}" + (f", {n} kernels" if n > 1 else "") for each, n in reasons.items()]),
    ]


def write_program(
    program: LoadedProgram, output: Path, *, weights: str | None = None, locations: bool = False
) -> str | None:
    """
    Write a program as a file of IR, and its weights to the file `weights`, or beside it where the file would not reach
    them otherwise; returns the name of that file, if there is one.

    With `locations` the text says where each operation comes from, such as a node of a model.
    """
    source, opened = str(program.path), program.weights_opened
    file, notes = carry_weights(program.ctx, program.module, source, str(output), opened, weights)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    text = located_text if locations else module_text
    write_output(str(output), text(program.ctx, program.module))
    return file


def write_c(folder: Path, program: LoadedProgram, source: CSource) -> list[str]:
    """
    Write the C of a program and its weights into a folder, which is made if need be, and return the names of the files;
    what was not generated is not replaced.
    """
    texts = folder_texts(source)
    weights = [program.ctx.weights[name] for name in signature_of(program.module).weights]

    def fill(fresh: Path) -> None:
        for name, text in texts.items():
            write_whole(fresh / name, text)
        if weights:
            with whole_file(fresh / weights_name(source)) as file:
                file.write(f"{GENERATED}\n".encode())
                for array, offset in zip(weights, weight_offsets(source), strict=False):
                    file.write(bytes(offset - file.tell()))
                    file.write(np.ascontiguousarray(stored(array)).data)
                file.write(bytes(weight_offsets(source)[-1] - file.tell()))

    write_folder(folder, "generated program", fill, is_ours=_is_generated)
    return [*texts, *([weights_name(source)] if weights else [])]


def _is_generated(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline().rstrip() == GENERATED.encode()
