"""Programs as files: the IR and the weights beside it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_text import located_text, module_text
from penstock.runtime.compiler import Program, import_program, load_input
from penstock.runtime.weights import carry_weights
from penstock.tools.arguments import read_dims
from penstock.tools.tensors import GivenTensors
from penstock.tools.text import write_output


def load_for_inputs(args: argparse.Namespace, given: GivenTensors) -> Program:
    """
    Load the model or IR of `args.model` for a run on the inputs `given`.

    The sizes of a model's symbolic dimensions, and integer inputs that only feed shapes, are taken from the inputs;
    `given` is left with those that the program still takes.
    """
    dims = read_dims(args.dim)
    path = Path(args.model)
    if path.suffix != ".onnx" or not (given.ordered or given.named):
        return load_input(path, dims=dims)
    from penstock.runtime.specialize import fit_to_inputs

    fitted = fit_to_inputs(path, given.ordered, given.named, dims)
    given.ordered[:] = fitted.ordered
    given.named.clear()
    given.named.update(fitted.named)
    return import_program(fitted.model, fitted.dims, name=str(path))


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
