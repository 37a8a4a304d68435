# SPDX-License-Identifier: Apache-2.0
"""A lowered program as a plan: its text, its weights, and its machine code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from xdsl.dialects.builtin import ModuleOp

from penstock import __version__
from penstock.dialects.context import WEIGHTS_ATTRIBUTE, PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import whole_file
from penstock.dialects.machine import find_target
from penstock.lowering.to_c import CSource
from penstock.lowering.to_llvm import LlvmSource
from penstock.lowering.to_text import located_text
from penstock.passes.toolchain import find_compiler
from penstock.runtime.levels import level_of
from penstock.runtime.native import build
from penstock.runtime.plan import MAGIC, counts_of, sizes_of, write_plan
from penstock.runtime.signature import signature_of
from penstock.runtime.tensor_specs import Signature
from penstock.runtime.weights import weight_uses


def save_plan(
    path: str | Path, module: ModuleOp, ctx: PenstockContext, signature: Signature, source: CSource | LlvmSource | None
) -> None:
    """
    Write the plan of a module to `path`, whole or not at all; see `write_program`.

    Raises UserError for a file there that is no plan, and where none can be written.
    """
    require_replaceable(path)
    with whole_file(path) as file:
        write_program(file, module, ctx, signature, source)


def require_replaceable(path: str | Path) -> None:
    """Raise UserError where something is at `path` that is no plan."""
    place = Path(path)
    if place.is_dir() or (place.is_file() and place.stat().st_size and not _is_plan_file(place)):
        raise UserError("exists and is no plan, so it is not replaced", loc=str(path))


def write_program(
    file: IO[bytes], module: ModuleOp, ctx: PenstockContext, signature: Signature, source: CSource | LlvmSource | None
) -> None:
    """
    Write the plan of a module, with the model's `signature`, to `file`. `source` is its C, whose functions are called
    after `main`, or its LLVM IR, which is made again where the plan is loaded; without either the plan is for the
    interpreter.

    Raises UserError without a working C compiler, if there is C.
    """
    arguments = signature_of(module).weights
    # Above loop level weights are constants.
    names = dict.fromkeys((*arguments, *(name for name, _, _ in weight_uses(module))))
    target = find_target(module)
    about: dict[str, object] = {
        "penstock": __version__,
        "machine": target.machine_name if target else None,
        "level": level_of(module),
    }
    with ThreadPoolExecutor(1) as pool:
        # The C compiler runs while the text is written.
        library = pool.submit(build, source) if isinstance(source, CSource) else None
        text = _text_of(module, ctx)
    code = None
    if library is not None and isinstance(source, CSource):
        code = (library.result().read_bytes(), find_compiler().features())
        about |= {"compiler": find_compiler().version, "flags": " ".join((*find_compiler().flags(), *source.options))}
    elif source is not None:
        about |= {"backend": "llvm"}
    if source is not None:
        about |= {"arena_bytes": source.arena_bytes, "scope_bytes": dict(source.scope_bytes)}
    about |= counts_of(signature) | sizes_of(signature)
    if source is not None and source.threads > 1:
        about |= {"threads": source.threads}
    weights = {name: ctx.weights[name] for name in names}
    write_plan(file, about, signature, weights, arguments, text, code)


def _text_of(module: ModuleOp, ctx: PenstockContext) -> str:
    """The text of a module, with locations, and without the name of a weights file: the plan holds the weights."""
    named = module.attributes.pop(WEIGHTS_ATTRIBUTE, None)
    try:
        return located_text(ctx, module)
    finally:
        if named is not None:
            module.attributes[WEIGHTS_ATTRIBUTE] = named


def _is_plan_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
