"""
A compiled plan as a folder, `NAME.plan`, that `penstock run` and `load_plan` read again:

- `plan.json`: the schema version, the machine, the level, the model's inputs and outputs, and a digest of the text,
  by which one that was edited is known: it is verified anew;
- `module.mlir`: the lowered program, with every decision as text: edit an offset and run again;
- `weights.safetensors`: the weights it takes, in the layouts that the passes chose;
- `*.c`, `*.h`: the generated C, for reading and for building elsewhere. Running the plan generates it anew from
  the text, so that an edited text is what runs.

Schema 1. A plan is replaced as a whole, and read only if its schema is known.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import write_whole
from penstock.dialects.machine import find_target
from penstock.lowering.from_text import parse_text, read_text
from penstock.lowering.to_text import located_text
from penstock.runtime.compiler import level_of
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.folders import FILES, write_folder
from penstock.runtime.pass_manager import verify as verify_ir
from penstock.runtime.signature import Signature, TensorSpec, signature_of
from penstock.runtime.weights import open_weights, save_weights

SCHEMA = 1
"""The version of the folder's layout; another one is refused."""

PLAN_FILE = "plan.json"
MODULE_FILE = "module.mlir"
WEIGHTS_FILE = "weights.safetensors"


def is_plan(path: str | Path) -> bool:
    """Whether a path is a folder that holds a plan."""
    return (Path(path) / PLAN_FILE).is_file()


def save_plan(engine: Engine, path: str | Path, sources: Mapping[str, str]) -> None:
    """
    Write the plan of an engine to the folder `path`, which is replaced as a whole if it is a plan already.

    `sources` are the generated C files by name. Raises UserError if `path` is something else or cannot be written.
    """
    write_folder(path, "plan", lambda folder: _fill(engine, folder, sources), marker=PLAN_FILE)


def load_plan(path: str | Path, backend: Backend = "native", *, verify: bool = True) -> Engine:
    """
    The engine of a plan, from its text and weights.

    Raises UserError for a folder that is no plan, an unknown schema, and text or weights that do not fit; with
    `verify`, and if the text is not what was written, also where it is not proved safe.
    """
    path = Path(path)
    place = str(path / PLAN_FILE)
    try:
        description = json.loads((path / PLAN_FILE).read_text(encoding="utf-8"))
        schema = description["schema"]
        if schema != SCHEMA:
            raise UserError(f"the plan has schema {schema}, and this version reads {SCHEMA}", loc=place)
        signature = _read_signature(description)
    except OSError as error:
        raise UserError(f"cannot read the plan: {error.strerror}", loc=place) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"not the description of a plan: {error!r}", loc=place) from None
    ctx = make_context()
    text = read_text(path / MODULE_FILE)
    parsed = parse_text(ctx, text)
    open_weights(ctx, parsed, text.name)
    edited = description.get("sha256") != _digest(text.text)
    if edited:
        verify_ir(parsed.module, parsed)
    return Engine(parsed.module, ctx, signature, backend, verify=verify and edited)


def _fill(engine: Engine, folder: Path, sources: Mapping[str, str]) -> None:
    if signature_of(engine.module).weights:
        save_weights(engine.ctx.weights, engine.module, folder / WEIGHTS_FILE)
    text = located_text(engine.ctx, engine.module)
    write_whole(folder / MODULE_FILE, text)
    for name, source in sources.items():
        write_whole(folder / name, source)
    target = find_target(engine.module)
    description = {
        "schema": SCHEMA,
        "penstock": version("penstock"),
        "machine": target.machine_name if target else None,
        "level": level_of(engine.module),
        "sha256": _digest(text),
        FILES: sorted([*os.listdir(folder), PLAN_FILE]),
        "inputs": [_spec_to_json(spec) for spec in engine.signature.inputs],
        "outputs": [_spec_to_json(spec) for spec in engine.signature.outputs],
    }
    write_whole(folder / PLAN_FILE, json.dumps(description, indent=2) + "\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype.name}


def _spec_from_json(entry: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(str(entry["name"]), tuple(map(int, entry["shape"])), np.dtype(entry["dtype"]))


def _read_signature(description: Mapping[str, Any]) -> Signature:
    return Signature(
        tuple(_spec_from_json(entry) for entry in description["inputs"]),
        tuple(_spec_from_json(entry) for entry in description["outputs"]),
    )
