"""Programs as files: the IR and the weights beside it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_text import located_text, module_text
from penstock.runtime.compiler import Program, bind_program, import_program, load_input, open_dims, require_bound
from penstock.runtime.signature import BoundDims, signature_of
from penstock.runtime.weights import carry_weights
from penstock.tools.arguments import read_dims
from penstock.tools.tensors import GivenTensors
from penstock.tools.text import write_output


def load_for_inputs(args: argparse.Namespace, given: GivenTensors) -> Program:
    """
    Load the model or IR of `args.model` for a run on the inputs `given`.

    The sizes of symbolic dimensions are taken from the inputs, and so are, for a model, the values of those that only
    feed shapes and the like; `given` is left with those that the program still takes. Raises UserError where two
    sizes of one dimension differ, and for dimensions that are still open.
    """
    dims = read_dims(args.dim)
    path = Path(args.model)
    if path.suffix != ".onnx" or not (given.ordered or given.named):
        if path.suffix == ".onnx":
            program = load_input(path, dims=dims, allow_nan=args.allow_nan)
        else:
            program = _load_text(path, dims, given)
        return _ready(program, given)
    from penstock.runtime.specialize import fit_to_inputs

    fitted = fit_to_inputs(path, given.ordered, given.named, dims)
    given.ordered[:] = fitted.ordered
    given.named.clear()
    given.named.update(fitted.named)
    program = import_program(fitted.model, fitted.dims, name=str(path), allow_nan=args.allow_nan)
    return _ready(program, given)


def _ready(program: Program, given: GivenTensors) -> Program:
    """The program, whose dimensions are bound. Inputs that do not fit are told first: they may be why one is open."""
    if (given.ordered or given.named) and open_dims(program.module):
        signature_of(program.module).bind(given.ordered, given.named)
    require_bound(program.module, str(program.path))
    return program


def _load_text(path: Path, dims: Mapping[str, int], given: GivenTensors) -> Program:
    """Load a file of IR, and bind what is open as `dims` and the inputs say."""
    program = load_input(path)
    if dims or open_dims(program.module):
        signature = signature_of(program.module)
        bound = signature.dims_of(given.ordered, given.named, BoundDims.by_hand(dims))
        bind_program(program, bound.sizes)
    return program


def write_program(program: Program, output: Path, *, locations: bool = False) -> None:
    """
    Write a program as a file of IR, and its weights beside it where the file would not reach them otherwise.

    With `locations` the text says where each operation comes from, such as a node of a model.
    """
    carry_weights(program.ctx, program.module, str(program.path), str(output), program.weights_opened)
    text = located_text if locations else module_text
    write_output(str(output), text(program.ctx, program.module))


def write_sources(folder: Path, sources: Mapping[str, str]) -> None:
    """Write generated files into a folder, which is made if need be; each is replaced as a whole."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder: {error.strerror}", loc=str(folder)) from None
    for name, source in sources.items():
        write_output(str(folder / name), source)
