# SPDX-License-Identifier: Apache-2.0
"""
Into the IR: an ONNX model becomes a module at graph level and a store of its weights.

Operator sets 7 to the newest of the installed onnx. What can be computed from constants and shapes is. A
symbolic dimension becomes a number, or stays: `?` in the types, its name in `graph.dims` of the argument. See
https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import ModelProto
from xdsl.dialects.builtin import ModuleOp, StringAttr

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.dialects.locations import inherit_locations
from penstock.dialects.verification import verify_module
from penstock.dialects.verifier import Verifier
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_onnx.importer import GraphImporter
from penstock.lowering.from_onnx.kernels import kernels_of, without_functions
from penstock.lowering.from_onnx.model import check_model, input_types, load_model, opsets_of

if TYPE_CHECKING:
    from penstock.lowering.from_kernel.lower import KernelFile

__all__ = ["import_model"]


def import_model(
    model: str | Path | ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
    allow_nan: bool = False,
    max_trips: int | None = None,
    kernels: Sequence[KernelFile] = (),
    verifier: Verifier | None = None,
) -> tuple[ModuleOp, WeightStore]:
    """
    The module of an ONNX model, with one function `@main`, and its weights.

    `model` is a path or a loaded model; `dims` gives sizes to symbolic dimensions; `name` becomes the
    name of the module, and is what messages call the file about a loaded model. Inputs and results of
    `@main` carry `graph.name`; as locations ops carry the names of the nodes, arguments their own, `@main` the graph's.

    A node of the domain `penstock` calls a kernel of the kernel language, of one of `kernels` or of the text that the
    model carries in its metadata under `penstock_kernels`; a function of the model in that place is not looked at.

    The module is verified; a `verifier` that is given can tell what is changed of it later.

    Where a run decides the trip count of a `Loop`, its scan outputs have `max_trips` lines, zeros where there was no
    iteration; the number of the others is one more result, called after the output with `/count`,
    which `graph.count` of that output names.

    Weights in files beside the model stay there, and are mapped. Weights that hold NaN are refused unless
    `allow_nan`.

    Raises UserError, located at the file: for a file that is no ONNX model, data files that are missing or short,
    a node that needs to know the size of a symbolic dimension that is left, or faults in the graph, and at the token
    for those in kernels; with status 3, naming each operator and its nodes, if operators are not supported.
    """
    if max_trips is not None and max_trips < 1:
        raise UserError("the most iterations of a loop, max_trips, is at least 1", status=USAGE)
    if isinstance(model, ModelProto):
        place, loaded = name or "<model>", model
        check_model(loaded, place)
    else:
        place, loaded = str(model), load_model(Path(model))
    callable_kernels = kernels_of(loaded, kernels, place)
    loaded = without_functions(loaded, callable_kernels, place)
    opsets = opsets_of(loaded, place)
    inputs = input_types(loaded, dims or {}, place)
    importer = GraphImporter(opsets, place, callable_kernels, allow_nan, max_trips)
    function = importer.run(loaded, inputs)
    module = ModuleOp([function, *callable_kernels.functions], sym_name=None if name is None else StringAttr(name))
    module.location = function.location
    inherit_locations(module)
    for valid, new in (verifier or Verifier()).check(module):
        verify_module(module, valid, new)
    return module, importer.store
