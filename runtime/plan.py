# SPDX-License-Identifier: Apache-2.0
"""
A compiled program as one file, a plan, that is mapped into memory and run as it is: no compiler, no parsing.

The file is a header of 4,096 bytes and sections, each of which begins at a multiple of 4,096 bytes; zeros fill the last
block of each. Numbers are little-endian; `include/penstock.h` is a second reader.

    header      0  8 bytes  89 50 45 4e 50 4c 41 4e
                8  u32      FORMAT
               12  u32      checksum of the header, with zeros in this place
               16  u64      bytes of the file
               24  u32 u32  number of sections, 0
               32  for each section: 16 bytes name, u64 offset, u64 bytes, u32 checksum, u32 0
    about       JSON: versions of Penstock and of the compiler, machine, level, bytes of the arena and of scopes;
                for each output the name of the one that counts its lines, "" for most, if there are any;
                where sizes are known only in a run, what they are called, their bounds, and the shapes that they make
    cpu         a line for the system and the instruction set, another for the features of the CPU that the code needs
    tensors     u32 inputs, u32 weights, u32 outputs, u32 weights that the code takes, which are the first; for each
                tensor, in this order: u32 index in DTYPES, u32 rank, u64 bytes, u64 offset (of a weight, in that
                section), u32 offset of its shape in this section, u32 offset of its name, u32 bytes of its name, u32 0;
                the shapes, i64 each, -1 for a size that only a run knows, whose bytes are those at its bound; the
                names, with a zero after each
    code        the shared object; not there in a plan for the interpreter, nor in one that LLVM compiles
    weights     the weights, each at a multiple of 64 bytes
    ir          the lowered program as text, with locations

A checksum is the CRC-32 of the sums, modulo 2^64, of the 64-bit numbers of each block: it runs at the speed of memory,
so that all of a file is checked before any of it is used. It finds every single bit that is flipped; of changes that
leave no sum as it was, it misses one in 2^32. It is no signature: a plan is code, and runs with the rights of the
process that loads it.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NoReturn

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.dialects.alignment import ALIGNMENT
from penstock.dialects.cpu import architecture, chosen_cpu
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_bits import DType, is_narrow_integer, stored
from penstock.dialects.files import release
from penstock.runtime.memory import argument_bytes
from penstock.runtime.tensor_specs import Signature, TensorSpec

Array = NDArray[Any]

FORMAT = 1
"""The version of the format; another one is refused."""
MAGIC = b"\x89PENPLAN"
BLOCK_BYTES = 4096
SUFFIX = ".plan"
ENTRY = "main"
"""What the functions of the code are called after."""

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
    "int4", "uint4", "int2", "uint2",
)  # fmt: skip
"""The element types; those of less than a byte take one each, integers among them sign-extended."""

_HEADER = struct.Struct("<8sIIQII")
_CHECKSUM_AT = 12
_SECTION = struct.Struct("<16sQQII")
_COUNTS = struct.Struct("<4I")
_TENSOR = struct.Struct("<IIQQ4I")
_AT_ONCE = 1 << 24
"""Bytes that are written together."""
_FOLDER_MARKER = "plan.json"
"""A plan of the first version of Penstock was a folder with this file."""


def checksum(data: Any) -> int:
    """The checksum of a buffer, as if zeros filled its last block."""
    array = np.frombuffer(data, np.uint8)
    whole = len(array) - len(array) % BLOCK_BYTES
    crc = zlib.crc32(_sums(array[:whole]))
    if whole < len(array):
        last = np.zeros(BLOCK_BYTES, np.uint8)
        last[: len(array) - whole] = array[whole:]
        crc = zlib.crc32(_sums(last), crc)
    return crc


def _sums(array: NDArray[np.uint8]) -> bytes:
    return array.view("<u8").reshape(-1, BLOCK_BYTES // 8).sum(axis=1, dtype="<u8").tobytes()


# reading


@dataclass(frozen=True)
class CodeInterface:
    """The arrays that the code of a plan takes, with the types that it keeps elements in."""

    inputs: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: tuple[tuple[str, int], ...] = ()
    """The sizes that each run gives, with their bounds."""
    name: str = ENTRY
    """What its functions are called after."""


@dataclass(frozen=True)
class PlanFile:
    """A plan in memory, whose checksums hold."""

    name: str
    """Of the file, for messages."""
    about: Mapping[str, Any]
    signature: Signature
    """The model's."""
    weights: Mapping[str, Array]
    """Read-only, where they lie in the file."""
    weight_arguments: tuple[str, ...]
    """The names of the weights in the order in which the code takes them."""
    sections: Mapping[str, memoryview]
    contents: memoryview
    """The whole file."""

    @property
    def code(self) -> memoryview | None:
        """The shared object, if it has one."""
        return self.sections.get("code")

    @property
    def is_compiled_by_llvm(self) -> bool:
        """Whether LLVM makes its machine code, where it is loaded."""
        return self.about.get("backend") == "llvm"

    @cached_property
    def interface(self) -> CodeInterface:
        """What the machine code takes."""
        held = _weight_specs(self.weight_arguments, self.weights)
        signature = self.signature
        return CodeInterface(
            _as_stored(signature.inputs), _as_stored(held), _as_stored(signature.outputs), signature.bounds
        )

    @cached_property
    def text(self) -> str:
        """The lowered program."""
        return str(self.sections["ir"], "utf-8")

    def require_runs_here(self) -> None:
        """Raise UserError where there is no machine code, or this CPU does not execute it."""
        again = f"compile it here: penstock compile MODEL -o {self.name}"
        if self.code is None:
            raise UserError("the plan has no machine code, so it is run by the interpreter alone", loc=self.name)
        made_for, features, *_ = str(self.sections["cpu"], "utf-8").split("\n")
        if made_for != architecture():
            message = f"the plan is code for {made_for}, and this is {architecture()}"
            raise UserError(message, loc=self.name, notes=[again])
        cpu = chosen_cpu()
        missing = [each for each in features.split() if each not in cpu.features]
        if missing:
            message = f"the plan needs features that {cpu.title} does not have: {', '.join(missing)}"
            raise UserError(message, loc=self.name, notes=[again])


def is_plan(path: str | Path) -> bool:
    """Whether a file is meant as a plan: by its name or by how it begins; so is a folder that once was one."""
    path = Path(path)
    if path.suffix == SUFFIX:
        return True
    if not path.is_file():  # from a FIFO bytes are read once
        return (path / _FOLDER_MARKER).is_file()
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_plan(path: str | Path) -> PlanFile:
    """
    Map the plan at `path`, and check all of it.

    Raises UserError for what is no plan, for one of another format, and for one that is truncated or damaged.
    """
    name = str(path)
    try:
        with open(path, "rb") as file:
            start = file.read(len(MAGIC))
            if start != MAGIC:
                _refuse_other(name, start)
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except IsADirectoryError:
        if not Path(path, _FOLDER_MARKER).is_file():
            raise UserError("a folder, and no plan", loc=name) from None
        notes = [
            "make a new one of the model: penstock compile MODEL -o FILE",
            f"or of its text: penstock compile {Path(path, 'module.mlir')} -p '' -o FILE",
        ]
        raise UserError("a plan of an earlier version, which was a folder", loc=name, notes=notes) from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the plan: {getattr(error, 'strerror', None) or error}", loc=name) from None
    return _read(name, memoryview(mapping))


def plan_of_bytes(name: str, contents: bytes) -> PlanFile:
    """The plan that `contents` are, with all checks of `open_plan`; they are copied to where weights are aligned."""
    if contents[: len(MAGIC)] != MAGIC:
        _refuse_other(name, contents[: len(MAGIC)])
    mapping = mmap.mmap(-1, len(contents))
    mapping.write(contents)
    return _read(name, memoryview(mapping).toreadonly())


def _refuse_other(name: str, start: bytes) -> NoReturn:
    notes = ["penstock compile MODEL -o FILE writes one"]
    if MAGIC.startswith(start) and start:
        raise UserError(f"the plan is truncated: it has {len(start)} bytes", loc=name, notes=notes)
    raise UserError("not a plan", loc=name, notes=notes)


def _read(name: str, contents: memoryview) -> PlanFile:
    sections = _checked_sections(name, contents)
    try:
        about = json.loads(bytes(sections["about"]))
        signature, weights, names = _read_tensors(sections["tensors"], sections["weights"])
        signature = _with_sizes(_with_counts(signature, about.get("counts")), about.get("sizes"))
    except (KeyError, ValueError, struct.error, IndexError) as error:
        raise UserError(f"the sections of the plan do not fit: {error!r}", loc=name) from None
    return PlanFile(name, about, signature, weights, names, sections, contents)


def _with_counts(signature: Signature, counts: Sequence[str] | None) -> Signature:
    """A signature with what `counts_of` wrote."""
    if counts is None:
        return signature
    outputs = tuple(replace(spec, count=count) for spec, count in zip(signature.outputs, counts, strict=True))
    return replace(signature, outputs=outputs)


def counts_of(signature: Signature) -> dict[str, Any]:
    """What the section `about` says of the outputs whose lines another one counts."""
    counts = [spec.count for spec in signature.outputs]
    return {"counts": counts} if any(counts) else {}


def _with_sizes(signature: Signature, sizes: Mapping[str, Any] | None) -> Signature:
    """A signature with what `sizes_of` wrote of sizes that only a run knows."""
    if sizes is None:
        return signature

    def opened(specs: Sequence[TensorSpec], known: Sequence[Any]) -> tuple[TensorSpec, ...]:
        found: list[TensorSpec] = []
        for spec, (dims, written) in zip(specs, known, strict=True):
            extents = tuple(tuple((int(factor), tuple(names)) for factor, names in extent) for extent in written)
            found.append(replace(spec, dims=tuple(dims), extents=extents))
        return tuple(found)

    inputs, outputs = opened(signature.inputs, sizes["inputs"]), opened(signature.outputs, sizes["outputs"])
    return Signature(inputs, outputs, signature.weights, tuple((name, int(most)) for name, most in sizes["bounds"]))


def sizes_of(signature: Signature) -> dict[str, Any]:
    """What the section `about` says of sizes that only a run knows: their bounds, and shapes as sums of products."""
    if not signature.bounds:
        return {}
    inputs, outputs = ([(each.dims, each.extents) for each in specs] for specs in (signature.inputs, signature.outputs))
    return {"sizes": {"bounds": signature.bounds, "inputs": inputs, "outputs": outputs}}


def _checked_sections(name: str, contents: memoryview) -> dict[str, memoryview]:
    again = ["make it again: penstock compile MODEL -o FILE"]
    if len(contents) < BLOCK_BYTES:
        raise UserError(f"the plan is truncated: it has {len(contents)} bytes", loc=name, notes=again)
    _, version, expected, size, count, _ = _HEADER.unpack_from(contents)
    if version != FORMAT:
        message = f"the plan has format {version}, and this version of Penstock reads {FORMAT}"
        raise UserError(message, loc=name, notes=again)
    header = bytearray(contents[:BLOCK_BYTES])
    header[_CHECKSUM_AT : _CHECKSUM_AT + 4] = bytes(4)
    if checksum(header) != expected:
        raise UserError("the plan is damaged: its header has another checksum", loc=name, notes=again)
    if size != len(contents):
        fault = "truncated" if len(contents) < size else "damaged"
        message = f"the plan is {fault}: it has {len(contents):,} bytes of {size:,}"
        raise UserError(message, loc=name, notes=again)
    found: dict[str, memoryview] = {}
    for number in range(count):
        raw, offset, length, expected, _ = _SECTION.unpack_from(contents, _HEADER.size + number * _SECTION.size)
        section = raw.rstrip(b"\0").decode()
        if checksum(contents[offset : offset + _padded(length)]) != expected:
            message = f'the plan is damaged: its section "{section}" has another checksum'
            raise UserError(message, loc=name, notes=again)
        found[section] = contents[offset : offset + length]
    return found


def _padded(size: int, to: int = BLOCK_BYTES) -> int:
    return -(-size // to) * to


def _dtype(number: int) -> DType:
    name = DTYPES[number]
    return np.dtype(getattr(ml_dtypes, name, name))


def _read_tensors(table: memoryview, weights: memoryview) -> tuple[Signature, dict[str, Array], tuple[str, ...]]:
    inputs, held, outputs, taken = _COUNTS.unpack_from(table)
    specs: list[TensorSpec] = []
    arrays: dict[str, Array] = {}
    for number in range(inputs + held + outputs):
        code, rank, size, offset, shape_at, name_at, name_size, _ = _TENSOR.unpack_from(
            table, _COUNTS.size + number * _TENSOR.size
        )
        shape = struct.unpack_from(f"<{rank}q", table, shape_at)
        spec = TensorSpec(str(table[name_at : name_at + name_size], "utf-8"), shape, _dtype(code))
        specs.append(spec)
        if inputs <= number < inputs + held:
            arrays[spec.name] = _weight(weights[offset : offset + size], spec)
    signature = Signature(tuple(specs[:inputs]), tuple(specs[inputs + held :]))
    return signature, arrays, tuple(spec.name for spec in specs[inputs : inputs + taken])


def _weight_specs(names: Sequence[str], weights: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, weights[name].shape, weights[name].dtype) for name in names)


def _as_stored(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(replace(each, dtype=np.dtype(np.int8)) if is_narrow_integer(each.dtype) else each for each in specs)


def _weight(data: memoryview, spec: TensorSpec) -> Array:
    if is_narrow_integer(spec.dtype):
        return np.frombuffer(data, np.int8).astype(spec.dtype).reshape(spec.shape)
    return np.frombuffer(data, spec.dtype).reshape(spec.shape)


# writing


def write_plan(
    file: IO[bytes],
    about: Mapping[str, Any],
    signature: Signature,
    weights: Mapping[str, Array],
    weight_arguments: Sequence[str],
    text: str,
    code: tuple[bytes, Sequence[str]] | None,
) -> None:
    """
    Write a plan to `file`, which is at its start and can seek. @main takes the weights of the names `weight_arguments`,
    in that order; `code` is a shared object for this machine, with the features of the CPU that it needs.
    """
    shared_object, features = code or (None, ())
    cpu = f"{architecture()}\n{' '.join(features)}\n"
    offsets: dict[str, int] = {}
    at = 0
    for name, array in weights.items():
        offsets[name] = at
        at += _padded(array.nbytes, ALIGNMENT)
    names = list(dict.fromkeys((*weight_arguments, *weights)))
    table = _tensor_table(signature, _weight_specs(names, weights), len(weight_arguments), offsets)
    small: dict[str, bytes | None] = {
        "about": json.dumps(dict(about), indent=2).encode(),
        "cpu": cpu.encode(),
        "tensors": table,
        "code": shared_object,
        "ir": text.encode(),
    }
    sections: list[bytes] = []
    file.write(bytes(BLOCK_BYTES))
    at = BLOCK_BYTES
    for name, data in small.items():
        if data is not None:
            file.write(data + bytes(_padded(len(data)) - len(data)))
            sections.append(_SECTION.pack(name.encode(), at, len(data), checksum(data), 0))
            at += _padded(len(data))
    size, crc = _write_weights(file, weights, offsets)
    sections.append(_SECTION.pack(b"weights", at, size, crc, 0))
    at += _padded(size)

    def header(crc: int) -> bytes:
        start = _HEADER.pack(MAGIC, FORMAT, crc, at, len(sections), 0) + b"".join(sections)
        return start + bytes(BLOCK_BYTES - len(start))

    file.seek(0)
    file.write(header(checksum(header(0))))


def _tensor_table(signature: Signature, weights: Sequence[TensorSpec], taken: int, offsets: Mapping[str, int]) -> bytes:
    """The section `tensors`; the code takes the first weights, and `offsets` are those of weights in their section."""
    specs = [
        *((spec, 0) for spec in signature.inputs),
        *((spec, offsets[spec.name]) for spec in weights),
        *((spec, 0) for spec in signature.outputs),
    ]
    bounds = dict(signature.bounds)
    records, shapes, names = bytearray(), bytearray(), bytearray()
    shapes_at = _COUNTS.size + len(specs) * _TENSOR.size
    names_at = shapes_at + 8 * sum(len(spec.shape) for spec, _ in specs)
    for spec, offset in specs:
        name, rank = spec.name.encode(), len(spec.shape)
        places = (shapes_at + len(shapes), names_at + len(names), len(name), 0)
        records += _TENSOR.pack(DTYPES.index(spec.dtype.name), rank, argument_bytes([spec.at(bounds)]), offset, *places)
        shapes += struct.pack(f"<{rank}q", *spec.shape)
        names += name + b"\0"
    counts = _COUNTS.pack(len(signature.inputs), len(weights), len(signature.outputs), taken)
    return bytes(counts + records + shapes + names)


def _write_weights(file: IO[bytes], weights: Mapping[str, Array], offsets: Mapping[str, int]) -> tuple[int, int]:
    """Write the section `weights`, and return its bytes and its checksum."""
    crc, block, at = 0, bytearray(), 0
    for name, array in weights.items():
        block += bytes(offsets[name] - at)
        data = np.ascontiguousarray(stored(array)).reshape(-1).view(np.uint8)
        at = offsets[name] + len(data)
        for start in range(0, len(data), _AT_ONCE):
            block += data[start : start + _AT_ONCE].data
            whole = len(block) - len(block) % BLOCK_BYTES
            crc = zlib.crc32(_sums(np.frombuffer(bytes(block[:whole]), np.uint8)), crc)
            file.write(block[:whole])
            del block[:whole]
            release(array)
    if block:
        block += bytes(_padded(len(block)) - len(block))
        crc = zlib.crc32(_sums(np.frombuffer(bytes(block), np.uint8)), crc)
        file.write(block)
    return at, crc
