# SPDX-License-Identifier: Apache-2.0
"""The sizes of a kernel: which names are sizes, and their numbers from what is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import index

from penstock.dialects.diagnostics import nearest_or_all
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import NAMED, Value, integer_of, number_of
from penstock.lowering.from_kernel.syntax import Declarator, Kernel, Name


def sizes_of(kernel: Kernel) -> list[str]:
    """The names of the sizes that the parameters have, in their order."""
    constants = {constant.name for constant in kernel.constants}
    named = (dim.name for each in kernel.parameters for dim in each.dims if isinstance(dim, Name))
    return [name for name in dict.fromkeys(named) if name not in constants]


def bind_numbers(kernel: Kernel, given: Mapping[str, int]) -> dict[str, Value]:
    """
    The sizes and constants of a kernel, as far as `given` and the defaults say them.

    Raises Fault for a name that the kernel does not have, and for a size below 1.
    """
    sizes = sizes_of(kernel)
    known = [*sizes, *(constant.name for constant in kernel.constants)]
    given = {name: _integer(name, size, kernel) for name, size in given.items()}
    for name, size in given.items():
        if name not in known:
            notes = [nearest_or_all(name, known, "sizes and constants")]
            raise Fault(f'the kernel "{kernel.name}" has no size "{name}"', kernel, notes)
        if name in sizes and size < 1:
            raise Fault(f'the size "{name}" must be at least 1, not {size}', kernel)
    numbers: dict[str, Value] = {name: given[name] for name in sizes if name in given}
    for constant in kernel.constants:
        if constant.name in numbers or constant.name in sizes or constant.name in NAMED:
            raise Fault(f'"{constant.name}" is a size or a constant already', constant)
        if constant.name in given:
            numbers[constant.name] = given[constant.name]
        elif constant.default is None:
            notes = [f"--dim {constant.name}=NUMBER"]
            raise Fault(f'the constant "{constant.name}" has no number', constant, notes)
        else:
            value = number_of(constant.default, numbers)
            if value is None:
                value = integer_of(constant.default, numbers, "the number of a constant")
            numbers[constant.name] = value
    return numbers


def _integer(name: str, size: object, kernel: Kernel) -> int:
    """A size as it is given from Python. Raises Fault for what is no integer."""
    try:
        return index(size)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise Fault(f'"{name}" must be an integer, not {size!r}', kernel) from None


def sizes_from_shapes(kernel: Kernel, shapes: Mapping[str, Sequence[int]], given: Mapping[str, int]) -> dict[str, int]:
    """
    `given`, and the sizes that the shapes of arguments say, by the names of their parameters.

    Raises Fault for shapes that do not fit each other.
    """
    names, found = sizes_of(kernel), dict(given)
    parameters = [parameter.name for parameter in kernel.parameters]
    for name in shapes:
        if name not in parameters:
            notes = [nearest_or_all(name, parameters, "parameters")]
            raise Fault(f'the kernel "{kernel.name}" has no parameter "{name}"', kernel, notes)
    for parameter in kernel.parameters:
        if (shape := shapes.get(parameter.name)) is None:
            continue
        if len(shape) != len(parameter.dims):
            raise Fault(f'"{parameter.name}" has {len(parameter.dims)} dims, and the argument {len(shape)}', parameter)
        for dim, size in zip(parameter.dims, shape, strict=True):
            if isinstance(dim, Name) and dim.name in names and found.setdefault(dim.name, size) != size:
                raise Fault(f'"{dim.name}" is {found[dim.name]}, and {size} by the argument "{parameter.name}"', dim)
    return found


def open_sizes(kernel: Kernel, numbers: Mapping[str, Value]) -> Iterator[str]:
    """The sizes that have no number yet."""
    return (name for name in sizes_of(kernel) if name not in numbers)


def shape_of_declaration(declared: Declarator, numbers: Mapping[str, Value]) -> tuple[int, ...]:
    """The shape that is declared. Raises Fault for a size below 1."""
    shape: list[int] = []
    for dim in declared.dims:
        size = integer_of(dim, numbers, "a size")
        if size < 1:
            raise Fault(f'"{declared.name}" has the size {size} here: a size must be at least 1', dim)
        shape.append(size)
    return tuple(shape)
