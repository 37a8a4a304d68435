# SPDX-License-Identifier: Apache-2.0
"""
A program for the real machine as a folder: C that issues its commands, and what builds and checks it.

- `NAME.h`, `NAME.c`: the program;
- `main.c`: runs it once on inputs and compares with what is expected; `data.S`: those and the weights, from files;
- `Makefile`: `make` builds it for the machine, `make check` runs it on the host against the model of the machine;
- the files that the machine file names in `[code]`, and `manifest.json`, which lists all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from penstock import __version__
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.element_bits import stored
from penstock.dialects.files import whole_file, write_whole
from penstock.dialects.machine import CodeOp, TargetOp, Template, find_target
from penstock.dialects.machine.code import QUEUES, TOKENS
from penstock.dialects.weights import WeightStore
from penstock.lowering.codegen.text import comment_text
from penstock.lowering.to_c import GENERATED, CParameter, CSource, emit_c
from penstock.lowering.to_c.folder import weight_offsets, weights_name
from penstock.passes.accel.accel_configure import IssueCounts, issue_counts
from penstock.passes.toolchain import NEEDED_FLAGS
from penstock.runtime.firmware import SCRIPT, linker_script, require_fit
from penstock.runtime.folders import FILES, write_folder
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline
from penstock.runtime.signature import signature_of
from penstock.runtime.tensor_specs import Signature

Array = NDArray[Any]

MANIFEST = "manifest.json"
PASSES = "accel-to-issues,canonicalize,cse,accel-configure,cse"
"""From the accel level to what is issued."""
ORDERING = {
    "program": (),
    QUEUES: ("accel-assign-queues",),
    "barrier": ("accel-tokens-to-barriers",),
    TOKENS: ("accel-tokens-to-waits",),
}
"""What comes before them, by what keeps the commands of the machine in order."""
CHECK = "code/check.h"
"""What compares outputs."""
TOLERANCE = 1e-5
"""How far outputs in floats may be from what is expected, relative to the largest; integers not at all."""


@dataclass(frozen=True)
class DeviceProgram:
    """A program for the real machine."""

    source: CSource
    weights: tuple[str, ...]
    """The names of the weights, in the order in which they are passed."""
    code: CodeOp
    files: Mapping[str, str]
    """The texts of the files that the machine names, by name."""
    counts: IssueCounts


def lower_to_device(module: ModuleOp, ctx: Context) -> None:
    """
    Lower a module at the accel level, in place, to the commands that its machine is given. Raises UserError where the
    machine does not spell them.
    """
    code = _code_of(module)
    for each in read_pipeline(",".join((*ORDERING[code.order.data], PASSES))):
        each.apply(ctx, module)
    module.verify()


def device_program(module: ModuleOp, name: str) -> DeviceProgram:
    """The C of a module that `lower_to_device` has lowered, and what belongs to it."""
    target = find_target(module)
    assert target is not None
    code = _code_of(module)
    return DeviceProgram(
        emit_c(module, name=name), signature_of(module).weights, code, machine_files(target), issue_counts(module)
    )


def _code_of(module: ModuleOp) -> CodeOp:
    target = find_target(module)
    code = None if target is None else target.code()
    if code is None:
        who = "the program has no machine" if target is None else f'machine "{target.machine_name}" spells no commands'
        notes = ["a machine file says how commands are written: [code], and emit of its engines and intrinsics"]
        raise UserError(f"{who}, so there is no C for it", notes=notes, status=UNSUPPORTED)
    return code


def machine_files(target: TargetOp) -> dict[str, str]:
    """
    The files that a machine names in `[code]`, from the folder of its file, by their last names. Raises UserError for
    one that cannot be read.
    """
    code = target.code()
    found: dict[str, str] = {}
    for attr in () if code is None or code.files is None else code.files:
        path = attr.data
        own = Path(target.location.filename.data).parent / path if isinstance(target.location, FileLineColLoc) else None
        # A machine that extends one that ships has the files of that one, too.
        shipped = resources.files("penstock.machines").joinpath(path)
        try:
            text = (own if own is not None and own.is_file() else shipped).read_text(encoding="utf-8")
        except OSError as error:
            message = f'cannot read the file "{path}" of machine "{target.machine_name}": {error.strerror}'
            raise UserError(message, notes=["paths are from the folder of the machine file"]) from None
        found[Path(path).name] = text
    return found


def write_device_folder(
    path: str | Path,
    program: DeviceProgram,
    reference: ModuleOp,
    weights: WeightStore,
    signature: Signature,
    inputs: Sequence[Array],
) -> None:
    """
    Write the folder `path`. `reference` is the program at a higher level, which says what the outputs for `inputs` are.

    Raises UserError if `path` is something else already, or cannot be written.
    """
    source = program.source
    target = program.code.parent_op()
    if find_target(reference) is None and isinstance(target, TargetOp):
        # A program that holds commands already is executed as the machine says.
        Rewriter.insert_op(target.clone(), InsertPoint.at_start(reference.body.block))
    expected = [
        np.ascontiguousarray(output).astype(spec.dtype, copy=False)
        for spec, output in zip(signature.outputs, run_module(reference, inputs, weights), strict=True)
    ]
    texts = {
        source.header_name: f"{GENERATED}\n{source.header}",
        f"{source.name}.c": f"{GENERATED}\n{source.source}",
        "main.c": _main(program, [each.dtype for each in expected]),
        "data.S": _data(source),
        "check.h": resources.files("penstock.machines").joinpath(CHECK).read_text(encoding="utf-8"),
        **program.files,
    }
    if isinstance(target, TargetOp) and target.memories():
        require_fit(target, source)
        texts[SCRIPT] = linker_script(target)
    texts["Makefile"] = _makefile(program, SCRIPT in texts)

    def fill(folder: Path) -> None:
        for name, text in texts.items():
            write_whole(folder / name, text)
        arrays = [weights[name] for name in program.weights]
        with whole_file(folder / weights_name(source)) as file:
            for array, offset in zip(arrays, weight_offsets(source), strict=False):
                file.write(bytes(offset - file.tell()))
                file.write(np.ascontiguousarray(stored(array)).tobytes())
            file.write(bytes(weight_offsets(source)[-1] - file.tell()))
        for kind, values in (("input", inputs), ("expected", expected)):
            for number, value in enumerate(values):
                write_whole(folder / f"{kind}_{number}.bin", np.ascontiguousarray(stored(value)).tobytes())
        names = sorted([*(each.name for each in folder.iterdir()), MANIFEST])
        manifest = {"penstock": __version__, "kind": "device", FILES: names}
        write_whole(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")

    write_folder(path, "program for a machine", fill, marker=MANIFEST)


# the files around the program


def _bytes(parameter: CParameter) -> int:
    return int(np.prod(parameter.shape, dtype=np.int64)) * parameter.dtype.itemsize


def _check_type(dtype: np.dtype[Any]) -> tuple[str, int]:
    """An element type as check.h calls it, and its bytes: others are compared byte by byte."""
    is_known = dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize > 2)
    return (f"{dtype.kind}{8 * dtype.itemsize}", dtype.itemsize) if is_known else ("u8", 1)


def _data(source: CSource) -> str:
    """The weights, inputs and expected outputs as symbols."""
    files = {"weights": weights_name(source)}
    files |= {f"input_{number}": f"input_{number}.bin" for number in range(len(source.inputs))}
    files |= {f"expected_{number}": f"expected_{number}.bin" for number in range(len(source.outputs))}
    text = f"{GENERATED}\n#if defined(__APPLE__)\n.const\n#define SYMBOL(name) _##name\n#else\n"
    text += "#define SYMBOL(name) name\n#endif\n"
    for name, file in files.items():
        symbol = f"SYMBOL({source.name}_{name})"
        section = '.weights,"a"' if name == "weights" else ".rodata"
        text += f"#if !defined(__APPLE__)\n.section {section}\n#endif\n"
        text += f'.global {symbol}\n.balign 64\n{symbol}:\n.incbin "{file}"\n'
    return text + '#if defined(__linux__) && defined(__ELF__)\n.section .note.GNU-stack,"",%progbits\n#endif\n'


def _main(program: DeviceProgram, dtypes: Sequence[np.dtype[Any]]) -> str:
    source, name = program.source, program.source.name
    includes = "".join(f'#include "{each.data}"\n' for each in program.code.headers or ())
    model = (
        "" if program.code.model is None else f'#ifdef PENSTOCK_MODEL\n#include "{program.code.model.data}"\n#endif\n'
    )
    *offsets, _ = weight_offsets(source)
    externs = [f"extern const unsigned char {name}_weights[];"]
    externs += [f"extern const unsigned char {name}_input_{number}[];" for number in range(len(source.inputs))]
    externs += [f"extern const unsigned char {name}_expected_{number}[];" for number in range(len(source.outputs))]
    outputs = [
        f"static _Alignas(64) unsigned char output_{number}[{max(1, _bytes(each))}]; /* {comment_text(str(each))} */"
        for number, each in enumerate(source.outputs)
    ]
    regions: list[str] = []
    if program.code.region is not None:
        template = Template.of(program.code.region.data)
        found = [("weights", f"{name}_weights", weight_offsets(source)[-1], 0)]
        found += [(each.name, f"{name}_input_{n}", _bytes(each), 0) for n, each in enumerate(source.inputs)]
        found += [(each.name, f"output_{n}", _bytes(each), 1) for n, each in enumerate(source.outputs)]
        found += [("arena", "context.arena", source.arena_bytes, 1)] if source.arena_bytes else []
        for title, pointer, size, writable in found:
            if size:
                values = {"name": json.dumps(title), "pointer": pointer, "bytes": str(size), "writable": str(writable)}
                regions.append(f"  {template.fill(values)}\n")
    checks: list[str] = []
    for number, (each, dtype) in enumerate(zip(source.outputs, dtypes, strict=True)):
        type, size = _check_type(dtype)
        tolerance = TOLERANCE if type[0] == "f" else 0
        given = f'"{comment_text(each.name)}", "{type}", output_{number}, {name}_expected_{number}'
        checks.append(f"  different += check_output({given}, {_bytes(each) // size}, {tolerance});\n")
    return _MAIN.format(
        generated=GENERATED,
        name=name,
        includes=includes,
        model=model,
        externs="\n".join([*externs, *outputs]),
        weights="".join(f"    {name}_weights + {offset},\n" for offset in offsets) or "    0\n",
        inputs="".join(f"    {name}_input_{number},\n" for number in range(len(source.inputs))) or "    0\n",
        outputs="".join(f"    output_{number},\n" for number in range(len(source.outputs))) or "    0\n",
        regions="".join(regions),
        checks="".join(checks),
    )


def _makefile(program: DeviceProgram, has_script: bool) -> str:
    name, code = program.source.name, program.code
    flags = " ".join(flag for flag in NEEDED_FLAGS if flag != "-fPIC")
    own = code.flags.data if code.flags is not None else ""
    sources = f"{name}.c main.c data.S"
    generated = GENERATED.removeprefix("/* ").removesuffix(" */")
    text = f"# {generated}\n\n"
    files = "$(wildcard *.c *.h *.S *.ld *.bin *.weights)"
    if code.build_command is not None:
        values = {"program": name, "sources": sources, "flags": own}
        build = Template.of(code.build_command.data).fill(values)
        text += f"{name}.elf: {files}\n\t{build}\n\n"
        if has_script:
            text += f"run:\n\t@{build} run\n\n.PHONY: run\n\n"
    if code.model is not None or not program.counts.commands:
        # What has no commands of the machine is C for any processor.
        options = f"{flags} {own} -DPENSTOCK_MODEL".replace("  ", " ")
        text += f"model: {files}\n\t$(CC) {options} -o $@ {sources} -lm\n\ncheck: model\n\t./model\n\n.PHONY: check\n"
    return text


_MAIN = """\
{generated}
#include "check.h"
#include "{name}.h"
{includes}{model}
{externs}

static {name}_ctx context;

int main(void) {{
  static const void *const weights[] = {{
{weights}  }};
  static const void *const inputs[] = {{
{inputs}  }};
  static void *const outputs[] = {{
{outputs}  }};
{regions}  penstock_before();
  int different = {name}_run(&context, weights, inputs, outputs);
  penstock_after();
  if (different) printf("fault %d, see {name}.h\\n", different);
{checks}  printf(different ? "FAIL\\n" : "PASS\\n");
  return different ? 1 : 0;
}}
"""
