# SPDX-License-Identifier: Apache-2.0
"""
Names of unknown sizes in the text: `dims ["N", "", ""]` has one entry a dimension, "" for one without a name.

An argument of a function names its unknown dimensions in the attribute `graph.dims`, a result those that are
known to be of a name. Two dimensions of one name have one size. An op has a property `dims` where its operands do
not say what a `?` of its result stands for.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError
from penstock.dialects.functions import input_name
from penstock.dialects.graph.sizes import Dim, named_size

DIMS = "graph.dims"
"""The attribute of an argument or result of a function."""

MAX_SIZE = 2**31 - 1
"""The largest size that a symbolic dimension may be given: bytes and offsets of tensors are counted in 64 bits."""


@dataclass(frozen=True)
class AtMost:
    """A size that each run has its own of, up to a bound: given in the place of a number, `dims={"N": AtMost(16)}`."""

    bound: int
    """The largest that it may be."""


Binding: TypeAlias = "SupportsIndex | AtMost"
"""What a dimension is given: a number, or a bound."""

Names: TypeAlias = ArrayAttr[StringAttr]


def names_attr(names: Sequence[str]) -> Names:
    """Names of dimensions as an attribute."""
    return ArrayAttr([StringAttr(name) for name in names])


def symbols_of(sizes: Sequence[int]) -> list[str]:
    """For each size its name, "" for one that is a number or more than a name."""
    return [(size.symbol or "") if isinstance(size, Dim) else "" for size in sizes]


def read_names(attribute: Attribute | None, shape: Sequence[int]) -> list[str]:
    """
    The names in an attribute, or none, of the dimensions of a tensor; `shape` is as its type has it.

    Raises VerifyException unless there is one for each dimension, and none for one whose size is known.
    """
    if attribute is None:
        return [""] * len(shape)
    if not isa(attribute, Names):
        raise VerifyException(f"the names of dimensions are a list of strings, not {attribute}")
    names = [name.data for name in attribute]
    if len(names) != len(shape):
        raise VerifyException(f"{len(names)} names {names} for {len(shape)} dimensions")
    for dim, (name, size) in enumerate(zip(names, shape, strict=True)):
        if name and size != DYNAMIC_INDEX:
            raise VerifyException(f'dimension {dim} is called "{name}", but its size is {size}')
    return names


def checked_sizes(sizes: Mapping[str, SupportsIndex], place: str | None = None) -> dict[str, int]:
    """
    Sizes that someone gives to dimensions, as Python's integers: NumPy's are welcome.

    Raises UserError, at `place`, for what is no integer from 1 to MAX_SIZE.
    """
    checked: dict[str, int] = {}
    for name, size in sizes.items():
        try:
            checked[name] = operator.index(size)
        except TypeError:
            raise UserError(f'the size of dimension "{name}" must be an integer, not {size!r}', loc=place) from None
        if checked[name] < 1:
            raise UserError(f'the dimension "{name}" must be at least 1, not {size}', loc=place)
        if checked[name] > MAX_SIZE:
            raise UserError(f'the dimension "{name}" must be at most {MAX_SIZE}, not {size}', loc=place)
    return checked


def split_bindings(dims: Mapping[str, Binding] | None) -> tuple[dict[str, SupportsIndex], dict[str, int]]:
    """The dimensions that are given a number, and those that are given a bound; raises UserError for a bad bound."""
    numbers = {name: each for name, each in (dims or {}).items() if not isinstance(each, AtMost)}
    return numbers, checked_sizes({name: each.bound for name, each in (dims or {}).items() if isinstance(each, AtMost)})


def size_of_name(name: str, sizes: Mapping[str, int]) -> int:
    """The size of a name: its number in `sizes`, else the size that is called so."""
    return sizes.get(name) or named_size(name)


def dims_of(function: FuncOp, *, results: bool = False) -> list[list[str]]:
    """
    The names of the dimensions of each argument, or result; an unknown one of an argument that the text gives no
    name is called `ARGUMENT.AXIS`, as in `x.0`.

    Raises VerifyException for attributes that do not fit the types.
    """
    types = function.function_type.outputs if results else function.function_type.inputs
    attributes = function.res_attrs if results else function.arg_attrs
    found: list[list[str]] = []
    for index, type in enumerate(types):
        given: Mapping[str, Attribute] = attributes.data[index].data if attributes else {}
        shape = type.get_shape() if isa(type, TensorType) else ()
        names = read_names(given.get(DIMS), shape)
        if not results:
            words = input_name(function, index)
            unnamed = [size == DYNAMIC_INDEX and not name for size, name in zip(shape, names, strict=True)]
            names = [f"{words}.{dim}" if unnamed[dim] else name for dim, name in enumerate(names)]
        found.append(names)
    return found
