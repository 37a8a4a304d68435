# SPDX-License-Identifier: Apache-2.0
"""
A program for VTA as a folder, for any executor of its instructions:

- `manifest.json`: the schema, where everything is, the steps of a run in order, and the buffers off chip;
- `insn.bin`: the instructions of all launches, 16 bytes each; `insn.txt`: the same, to be read;
- `uop.bin`: the micro-operations, 4 bytes each, which lie off chip after all else; `uop.txt`: the same, to be read;
- `dram.bin`: the rest of memory off chip at the beginning: inputs, weights, constants, and zeros;
- `host.bin`: what the host writes between launches; `expected.bin`: what launches write, and the outputs.

All binary files are little-endian. Schema 1. A folder is replaced as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import __version__
from penstock.dialects.files import write_whole
from penstock.lowering.to_vta.disassembler import disassemble, micro_op_text
from penstock.lowering.to_vta.isa import (
    BLOCK,
    DEPTHS,
    DRAM_BYTES,
    INSTRUCTION_BYTES,
    MICRO_OP_BYTES,
    Instruction,
    MemoryType,
    encode,
)
from penstock.lowering.to_vta.module import VtaModule, VtaStep
from penstock.passes.analysis.commands.program import View
from penstock.runtime.folders import FILES, write_folder
from penstock.runtime.tensor_specs import TensorSpec
from penstock.runtime.vta.reference import Observation, Origin, view_of

Array = NDArray[Any]

FORMAT = "penstock-vta"
SCHEMA = 1
"""The version of the folder's layout; another one is refused."""

MANIFEST, INSTRUCTIONS, TEXT, MICRO_OPS, MICRO_OP_TEXT, DRAM_IMAGE, HOST, EXPECTED = _NAMES = (
    "manifest.json",
    "insn.bin",
    "insn.txt",
    "uop.bin",
    "uop.txt",
    "dram.bin",
    "host.bin",
    "expected.bin",
)


def save_folder(
    path: str | Path,
    encoded: VtaModule,
    observed: Observation,
    outputs: Sequence[tuple[TensorSpec, Array]],
    cycles: Sequence[int],
) -> None:
    """
    Write the folder of a program. `outputs` are what it must come to, computed at a higher level; `cycles` how long
    each launch takes.

    Raises UserError if `path` is something else already, or cannot be written.
    """
    description = _Description(encoded, observed, cycles)
    manifest = description.manifest(outputs)

    def fill(folder: Path) -> None:
        write_whole(folder / MANIFEST, _readable(manifest))
        write_whole(folder / INSTRUCTIONS, encode(description.instructions))
        write_whole(folder / TEXT, disassemble(description.instructions))
        write_whole(folder / MICRO_OPS, encoded.micro_ops.data)
        listed = micro_op_text(encoded.micro_ops.data, encoded.micro_ops.base // MICRO_OP_BYTES)
        write_whole(folder / MICRO_OP_TEXT, listed)
        write_whole(folder / DRAM_IMAGE, observed.dram.tobytes())
        write_whole(folder / HOST, bytes(description.host.data))
        write_whole(folder / EXPECTED, bytes(description.expected.data))

    write_folder(path, "folder of instructions", fill, marker=MANIFEST)


def _readable(manifest: dict[str, Any]) -> str:
    """The manifest as text, with lists of numbers on one line each."""
    text = json.dumps(manifest, indent=1)
    return re.sub(r"\[[-\d,\s]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


@dataclass
class _Blob:
    """Arrays one after the other in a file."""

    data: bytearray = field(default_factory=bytearray)

    def add(self, array: Array) -> dict[str, int]:
        raw = array.tobytes()
        place = {"offset": len(self.data), "bytes": len(raw)}
        self.data += raw
        return place


class _Description:
    """The manifest as it grows."""

    def __init__(self, encoded: VtaModule, observed: Observation, cycles: Sequence[int]):
        self.instructions: list[Instruction] = []
        self.host = _Blob()
        self.expected = _Blob()
        self._encoded = encoded
        self._buffers: list[dict[str, Any]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._steps: list[dict[str, Any]] = []
        self._cycles = iter(cycles)
        held = observed.dram.copy()
        for step, after, origins in zip(encoded.steps, observed.after, observed.origins, strict=True):
            self._add_step(step, after, origins, held)

    def _add_step(
        self,
        step: VtaStep,
        after: Sequence[Array | None],
        origins: Sequence[Origin | None],
        held: NDArray[np.uint8],
    ) -> None:
        """Note a step, after which memory off chip, `held` before it, holds `after` in its arguments."""
        buffers: list[int] = []
        changed: list[tuple[int, Array]] = []
        for number, (view, array, origin) in enumerate(zip(step.arguments, after, origins, strict=True)):
            if view is None or array is None or origin is None:
                buffers.append(-1)
                continue
            memory = step.memories[number] if step.memories else None
            buffers.append(self._buffer(view, array.dtype, origin, memory))
            before = view_of(held, self._encoded.address(view), view, array.dtype)
            if number in step.writes or (step.instructions is None and before.tobytes() != array.tobytes()):
                changed.append((buffers[-1], array))
            before[...] = array
        if step.instructions is None:
            writes = [{"buffer": buffer, "data": self.host.add(array)} for buffer, array in changed]
            self._steps.append({"kind": "host", "kernel": step.kernel, "writes": writes})
            return
        begin = len(self.instructions)
        self.instructions.extend(step.instructions)
        self._steps.append(
            {
                "kind": "launch",
                "kernel": step.kernel,
                "instructions": [begin, len(self.instructions)],
                "cycles": next(self._cycles),
                "reads": [buffers[number] for number in step.reads],
                "writes": [{"buffer": buffer, "expected": self.expected.add(array)} for buffer, array in changed],
            }
        )

    def _buffer(self, view: View, dtype: np.dtype[Any], origin: Origin, memory: MemoryType | None) -> int:
        key = view.storage, view.start, view.shape, view.strides, dtype.name
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._buffers)
            self._buffers.append(
                {
                    "name": origin.name,
                    "role": origin.role,
                    "offset": self._encoded.address(view),
                    "shape": list(view.shape),
                    "dtype": dtype.name,
                    "strides": list(view.strides),
                }
            )
        if memory is not None:
            self._buffers[number]["memory"] = memory.name
            self._buffers[number]["entry"] = _entry_shape(view, memory)
        return number

    def manifest(self, outputs: Sequence[tuple[TensorSpec, Array]]) -> dict[str, Any]:
        """All of it."""
        encoded = self._encoded
        store = encoded.micro_ops
        return {
            "format": FORMAT,
            FILES: sorted(_NAMES),
            "schema": SCHEMA,
            "penstock": __version__,
            "machine": encoded.target.machine_name,
            "configuration": {
                "batch": 1,
                "block_in": BLOCK,
                "block_out": BLOCK,
                "instruction_bytes": INSTRUCTION_BYTES,
                "micro_op_bytes": MICRO_OP_BYTES,
                "memories": {
                    memory.name: {"id": int(memory), "entries": DEPTHS[memory], "dram_bytes": DRAM_BYTES[memory]}
                    for memory in MemoryType
                },
            },
            "dram": {
                "bytes": encoded.dram_bytes,
                "contents": [
                    {"file": DRAM_IMAGE, "offset": 0, "bytes": store.base},
                    {"file": MICRO_OPS, "offset": store.base, "bytes": len(store.data)},
                ],
            },
            "instructions": {"file": INSTRUCTIONS, "count": len(self.instructions)},
            "host": {"file": HOST},
            "expected": {"file": EXPECTED},
            "buffers": self._buffers,
            "steps": self._steps,
            "outputs": [self._output(spec, array) for spec, array in outputs],
        }

    def _output(self, spec: TensorSpec, array: Array) -> dict[str, Any]:
        buffers = [
            number
            for number, buffer in enumerate(self._buffers)
            if buffer["role"] == "output" and buffer["name"] == spec.name
        ]
        return {
            "name": spec.name,
            "shape": list(spec.shape),
            "dtype": spec.dtype.name,
            "buffers": buffers,
            "expected": self.expected.add(array),
        }


def _entry_shape(view: View, memory: MemoryType) -> list[int]:
    """The trailing dims that one entry holds."""
    elements = DRAM_BYTES[memory] // view.element_bytes
    shape: list[int] = []
    for size in reversed(view.shape):
        if elements <= 1:
            break
        shape.insert(0, min(size, elements))
        elements //= max(1, size)
    return shape
