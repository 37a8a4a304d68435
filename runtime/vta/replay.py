# SPDX-License-Identifier: Apache-2.0
"""Runs a folder of instructions from its files alone, on our own executor, and compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.runtime.vta.executor import Counts, Executor
from penstock.runtime.vta.folder import FORMAT, MANIFEST, SCHEMA
from penstock.runtime.vta.reference import elements_at

Array = NDArray[Any]


@dataclass(frozen=True)
class Replay:
    """A run of a folder, in which every buffer that a launch wrote held what was expected."""

    outputs: dict[str, Array]
    """By name; they are those of the run, host and accelerator."""
    counts: Counts
    launches: int


def replay(path: str | Path, *, seed: int | None = None) -> Replay:
    """
    Run all steps of the folder `path`; `seed` draws an order that the tokens permit.

    Raises UserError for a folder of another schema, for what an instruction cannot do, and for a launch that writes
    anything else than what is expected, with the buffer and the first element.
    """
    folder = Path(path)
    manifest = _manifest(folder)
    dram = np.zeros(manifest["dram"]["bytes"], np.uint8)
    for content in manifest["dram"]["contents"]:
        raw = _read(folder, content["file"])
        dram[content["offset"] : content["offset"] + content["bytes"]] = np.frombuffer(raw, np.uint8)
    stream, host = _read(folder, manifest["instructions"]["file"]), _read(folder, manifest["host"]["file"])
    expected = _read(folder, manifest["expected"]["file"])
    size = manifest["configuration"]["instruction_bytes"]
    executor = Executor(dram)
    launches = 0
    for step in manifest["steps"]:
        if step["kind"] == "host":
            for write in step["writes"]:
                buffer = manifest["buffers"][write["buffer"]]
                _elements(dram, buffer)[...] = _array(host, write["data"], buffer)
            continue
        begin, end = step["instructions"]
        executor.run(stream[begin * size : end * size], seed=seed)
        launches += 1
        for write in step["writes"]:
            buffer = manifest["buffers"][write["buffer"]]
            _compare(_elements(dram, buffer), _array(expected, write["expected"], buffer), buffer, step["kernel"])
    outputs: dict[str, Array] = {}
    for output in manifest["outputs"]:
        for number in output["buffers"]:
            found = np.array(_elements(dram, manifest["buffers"][number]))
            if found.nbytes == output["expected"]["bytes"]:
                outputs[output["name"]] = found.view(output["dtype"]).reshape(output["shape"])
    return Replay(outputs, executor.counts, launches)


def expected_outputs(path: str | Path) -> dict[str, Array]:
    """What the outputs of the folder `path` must be, as a higher level computed them."""
    folder = Path(path)
    manifest = _manifest(folder)
    raw = _read(folder, manifest["expected"]["file"])
    return {output["name"]: _array(raw, output["expected"], output) for output in manifest["outputs"]}


def _manifest(folder: Path) -> dict[str, Any]:
    place = str(folder / MANIFEST)
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the manifest: {error.strerror}", loc=place) from None
    except ValueError as error:
        raise UserError(f"not a manifest: {error}", loc=place) from None
    if manifest.get("format") != FORMAT or manifest.get("schema") != SCHEMA:
        raise UserError(
            f"the manifest is {manifest.get('format')} with schema {manifest.get('schema')}, and this version reads"
            f" {FORMAT} with schema {SCHEMA}",
            loc=place,
        )
    return manifest


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", loc=str(folder / name)) from None


def _elements(dram: NDArray[np.uint8], buffer: Mapping[str, Any]) -> Array:
    """A buffer, in place."""
    return elements_at(dram, buffer["offset"], buffer["shape"], buffer["strides"], np.dtype(buffer["dtype"]))


def _array(raw: bytes, place: Mapping[str, int], described: Mapping[str, Any]) -> Array:
    part = raw[place["offset"] : place["offset"] + place["bytes"]]
    return np.frombuffer(part, described["dtype"]).reshape(described["shape"])


def _compare(found: Array, expected: Array, buffer: Mapping[str, Any], kernel: str) -> None:
    different = np.argwhere(found != expected)
    if different.size:
        index = tuple(different[0].tolist())
        raise UserError(
            f'@{kernel} writes {found[index]} to "{buffer["name"]}"{list(index)}, and {expected[index]} is expected',
            notes=[f"{len(different)} of {found.size} elements differ"],
        )
