# SPDX-License-Identifier: Apache-2.0
"""Tensors in files: NumPy's .npy and .npz, and ONNX's .pb."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.dialects.files import write_whole

Array = NDArray[Any]

FORMATS = ("npy", "pb")
"""The formats that outputs are written in."""


@dataclass
class GivenTensors:
    """The inputs of a run: those given in order, and those given by name."""

    ordered: list[Array] = field(default_factory=list[Array])
    named: dict[str, Array] = field(default_factory=dict[str, Array])


def read_given(words: Sequence[str]) -> GivenTensors:
    """
    The tensors of `FILE` and `NAME=FILE` words. The entries of an .npz are given by their names.

    Raises UserError for a file that cannot be read and for a name that is given twice.
    """
    given = GivenTensors()
    for word in words:
        name, _, file = word.rpartition("=")
        # A path may hold a `=` of its own; what exists is a path.
        if Path(word).exists():
            name, file = "", word
        if Path(file).suffix == ".npz" and not name:
            for entry, array in read_archive(file).items():
                _add(given, entry, array)
        elif name:
            _add(given, name, read_tensor(file))
        else:
            given.ordered.append(read_tensor(file))
    return given


def _add(given: GivenTensors, name: str, array: Array) -> None:
    if name in given.named:
        raise UserError(f'the input "{name}" is given twice', status=USAGE)
    given.named[name] = array


def read_tensor(path: str) -> Array:
    """The tensor in a file .npy, .pb, or .npz with one entry; raises UserError if it cannot be read."""
    match Path(path).suffix:
        case ".npy":
            return _read_numpy(path)
        case ".npz":
            entries = read_archive(path)
            if len(entries) != 1:
                raise UserError(f"the archive holds {len(entries)} tensors, not one", loc=path)
            return next(iter(entries.values()))
        case ".pb":
            return _read_proto(path)
        case other:
            raise UserError(
                f'tensors are not read from "{other}" files',
                loc=path,
                notes=["tensors are .npy, .npz or ONNX .pb files"],
            )


def read_archive(path: str) -> dict[str, Array]:
    """The tensors of an .npz by name, in the order of the file; raises UserError if it cannot be read."""
    loaded = _load_numpy(path)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise UserError("not an .npz archive", loc=path)
    with loaded:
        try:
            return {name: loaded[name] for name in loaded.files}
        except (ValueError, OSError, BadZipFile, zlib.error) as error:
            raise UserError(f"not a readable .npz archive: {error}", loc=path) from None


def write_tensor(path: Path, array: Array, name: str) -> None:
    """Write a tensor as .npy or .pb, by the suffix of `path`, whole or not at all."""
    if path.suffix == ".pb":
        from onnx import numpy_helper

        data = numpy_helper.from_array(array, name).SerializeToString()
    else:
        stream = io.BytesIO()
        np.save(stream, array, allow_pickle=False)
        data = stream.getvalue()
    write_whole(path, data)


def _read_numpy(path: str) -> Array:
    loaded: Any = _load_numpy(path)
    if not isinstance(loaded, np.ndarray):
        raise UserError("an .npz archive under the name of an .npy file", loc=path)
    return cast(Array, loaded)


def _load_numpy(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        if error.strerror is None:
            raise UserError(f"not a readable NumPy file: {error}", loc=path) from None
        raise UserError(f"cannot read the file: {error.strerror}", loc=path) from None
    except (ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"not a readable NumPy file: {error}", loc=path) from None


def _read_proto(path: str) -> Array:
    from google.protobuf.message import DecodeError
    from onnx import TensorProto, numpy_helper

    try:
        tensor = TensorProto.FromString(Path(path).read_bytes())
        return numpy_helper.to_array(tensor)
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", loc=path) from None
    except (DecodeError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"not an ONNX tensor: {error}", loc=path) from None
