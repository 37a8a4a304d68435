# SPDX-License-Identifier: Apache-2.0
"""
A program in C as a folder that a person reads, builds by one command and runs: `<name>.h` and `<name>.c`, the program;
`<name>_main.c`, which reads inputs from files and writes outputs to files; `<name>.weights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from penstock.dialects.alignment import ALIGNMENT
from penstock.dialects.cpu import NATIVE_FLAGS
from penstock.lowering.codegen.program import CParameter
from penstock.lowering.codegen.text import comment_text
from penstock.lowering.to_c.module import GENERATED, CSource
from penstock.passes.toolchain import NEEDED_FLAGS, WISHED_FLAGS

FIRST_WEIGHT = 4096
"""The offset in a file of weights; before it is the line that says that it is generated, and zeros."""


def folder_texts(source: CSource) -> dict[str, str]:
    """The files of text by name, each marked as generated."""
    name = source.name
    flags = " ".join(flag for flag in NEEDED_FLAGS if flag != "-fPIC")
    native = " ".join(NATIVE_FLAGS)
    libraries = "-lm -pthread" if source.threads > 1 else "-lm"
    own = "".join(f"{each} " for each in source.options)
    command = f"cc {flags} {native} {name}.c {name}_main.c {own}{libraries} -o {name}"
    by_gcc = " ".join(flag for wish in WISHED_FLAGS for flag in wish)
    if source.sizes:
        # What reads the inputs from files would have to know how large they are.
        return {
            source.header_name: f"{GENERATED}\n{source.header}",
            f"{name}.c": f"{GENERATED}\n/* Build: cc {flags} {native} -c {name}.c {own}*/\n{source.source}",
        }
    run = " ".join((f"./{name}", *(f"INPUT_{number}.bin" for number in range(len(source.inputs)))))
    lines = [f"Build: {command}", f"With GCC on x86 add: {by_gcc}"]
    build = "/* " + "\n   ".join([*lines, f"Run:   {run}: writes output_0.bin and so on. */"])
    return {
        source.header_name: f"{GENERATED}\n{source.header}",
        f"{name}.c": f"{GENERATED}\n{build}\n{source.source}",
        f"{name}_main.c": f"{GENERATED}\n{build}\n{_main(source)}",
    }


def weights_name(source: CSource) -> str:
    """The name of the file of weights."""
    return f"{source.name}.weights"


def weight_offsets(source: CSource) -> list[int]:
    """The offsets of the weights in their file, and its size."""
    offsets = [FIRST_WEIGHT]
    for weight in source.weights:
        offsets.append(-(-(offsets[-1] + _bytes(weight)) // ALIGNMENT) * ALIGNMENT)
    return offsets


def _bytes(parameter: CParameter) -> int:
    return prod(parameter.shape) * parameter.dtype.itemsize


def _main(source: CSource) -> str:
    *offsets, size = weight_offsets(source)
    start = stop = ""
    if source.threads > 1:
        start = _START.format(name=source.name)
        stop = f"  {source.name}_stop(ctx);\n"
    return _MAIN.format(
        start=start,
        stop=stop,
        name=source.name,
        size=size,
        weights=_table(offsets, [weight.name for weight in source.weights]),
        inputs=_table([_bytes(each) for each in source.inputs], [each.name for each in source.inputs]),
        outputs=_table([_bytes(each) for each in source.outputs], [each.name for each in source.outputs]),
        weight_count=len(source.weights),
        input_count=len(source.inputs),
        output_count=len(source.outputs),
        file=weights_name(source),
    )


def _table(numbers: Sequence[int], names: Sequence[str]) -> str:
    # An array has an element.
    lines = [f"  {number}, /* {comment_text(name)} */\n" for number, name in zip(numbers, names, strict=True)]
    return "".join(lines) or "  0\n"


_START = """\
  if ({name}_start(ctx, {name}_threads()) != 0) {{
    fprintf(stderr, "%s: error: its threads cannot be started\\n", words[0]);
    return 1;
  }}
"""

_MAIN = """\
#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>

enum {{ WEIGHTS = {weight_count}, INPUTS = {input_count}, OUTPUTS = {output_count} }};

/* Where the weights begin in {file}. */
static const size_t weight_offsets[] = {{
{weights}}};
/* The bytes of inputs and of outputs. */
static const size_t input_bytes[] = {{
{inputs}}};
static const size_t output_bytes[] = {{
{outputs}}};

/* The contents of a file of `size` bytes, aligned to 64; ends the program, with a message, if it is none. */
static void *read_file(const char *path, size_t size) {{
  FILE *file = fopen(path, "rb");
  void *bytes = aligned_alloc(64, (size + 64) / 64 * 64);
  if (file == NULL || bytes == NULL || fread(bytes, 1, size, file) != size || fgetc(file) != EOF) {{
    fprintf(stderr, "%s: error: not a file of %zu bytes\\n", path, size);
    exit(1);
  }}
  fclose(file);
  return bytes;
}}

int main(int count, char **words) {{
  if (count != 1 + INPUTS) {{
    fprintf(stderr, "usage: %s, and a file for each of %d inputs\\n", words[0], (int)INPUTS);
    return 2;
  }}
  const void *weights[WEIGHTS + 1] = {{0}};
  const void *inputs[INPUTS + 1] = {{0}};
  void *outputs[OUTPUTS + 1] = {{0}};
  unsigned char *memory = WEIGHTS > 0 ? read_file("{file}", {size}) : NULL;
  for (int number = 0; number < WEIGHTS; ++number) weights[number] = memory + weight_offsets[number];
  for (int number = 0; number < INPUTS; ++number) inputs[number] = read_file(words[1 + number], input_bytes[number]);
  for (int number = 0; number < OUTPUTS; ++number) {{
    outputs[number] = aligned_alloc(64, (output_bytes[number] + 64) / 64 * 64);
    if (outputs[number] == NULL) return 1;
  }}
  {name}_ctx *ctx = aligned_alloc(64, ({name}_context_size() + 63) / 64 * 64);
  if (ctx == NULL) return 1;
{start}  const int fault = {name}_run(ctx, weights, inputs, outputs);
{stop}  if (fault != 0) {{
    fprintf(stderr, "%s: error: fault %d, see {name}.h\\n", words[0], fault);
    return 1;
  }}
  for (int number = 0; number < OUTPUTS; ++number) {{
    char name[32];
    snprintf(name, sizeof name, "output_%d.bin", number);
    FILE *file = fopen(name, "wb");
    if (file == NULL || fwrite(outputs[number], 1, output_bytes[number], file) != output_bytes[number]) return 1;
    if (fclose(file) != 0) return 1;
  }}
  return 0;
}}
"""
