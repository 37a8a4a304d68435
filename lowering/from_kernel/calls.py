# SPDX-License-Identifier: Apache-2.0
"""Calls of kernels from a graph: which texts they stand in, and the functions that those that are called become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.traits import SymbolTable

from penstock.dialects.diagnostics import UserError, location_of, nearest_or_all
from penstock.dialects.graph.base import is_static, tensor_of
from penstock.dialects.graph.kernel import KernelOp

if TYPE_CHECKING:
    from penstock.lowering.from_kernel.lower import KernelFile
    from penstock.lowering.from_kernel.syntax import Kernel


@dataclass(frozen=True)
class _Shaped:
    """An operand, of which only the shape is known."""

    shape: tuple[int, ...]


@dataclass
class CalledKernels:
    """The kernels that one program may call."""

    by_name: Mapping[str, tuple[KernelFile, Kernel]]
    functions: list[FuncOp] = field(default_factory=list[FuncOp])
    """One for each kernel and each set of sizes that it is called with."""
    taken: frozenset[str] = frozenset()
    """The names that other functions of the program have."""
    _made: dict[tuple[str, tuple[tuple[str, int], ...]], FuncOp] = field(
        default_factory=dict[tuple[str, tuple[tuple[str, int], ...]], FuncOp]
    )

    def unknown(self, name: str) -> str:
        """A note on a kernel that is not there."""
        none = "there are no kernels: --kernels FILE.pk gives some"
        return nearest_or_all(name, self.by_name, "kernels") if self.by_name else none

    def function(self, name: str, shapes: Sequence[tuple[int, ...]], constants: Mapping[str, int], call: str) -> FuncOp:
        """
        The function of a kernel whose sizes operands of these shapes say; `call` says in words what calls it.

        Raises UserError, at the token of the text, for shapes that do not fit and for what is wrong with the kernel.
        """
        file, kernel = self.by_name[name]
        try:
            sizes = file.sizes_from_arguments(kernel, [_Shaped(shape) for shape in shapes], {}, constants)
            key = name, tuple(sorted(sizes.items()))
            if key not in self._made:
                self._made[key] = self._named(file.function(kernel, sizes), name)
        except UserError as error:
            notes = [*error.notes, f"it is called by {call}"]
            raise UserError(error.message, loc=error.loc, notes=notes, status=error.status) from None
        return self._made[key]

    def types(self, name: str, function: FuncOp) -> tuple[list[Attribute], list[Attribute]]:
        """The types of operands and results of a kernel at graph level."""
        file, kernel = self.by_name[name]
        return file.types(kernel, function)

    def _named(self, function: FuncOp, name: str) -> FuncOp:
        taken = {*self.taken, *self.by_name, *(each.sym_name.data for each in self.functions)}
        if any(each.sym_name.data == name for each in self.functions):
            names = (f"{name}_{number}" for number in range(1, len(taken) + 2))
            function.sym_name = StringAttr(next(each for each in names if each not in taken))
        self.functions.append(function)
        return function


def called_kernels_of(files: Sequence[KernelFile], taken: frozenset[str] = frozenset()) -> CalledKernels:
    """
    The kernels of some files, for a program with functions of the names `taken`.

    Raises UserError, at its token, for a kernel that two files have.
    """
    found: dict[str, tuple[KernelFile, Kernel]] = {}
    for file in files:
        for name, kernel in file.kernels.items():
            if name in found:
                first, other = found[name]
                notes = [f"the other one is at {first.place(other.at)}"]
                raise UserError(f'the kernel "{name}" is there twice', loc=file.place(kernel.at), notes=notes)
            found[name] = file, kernel
    return CalledKernels(found, taken=taken)


def link_kernels(module: ModuleOp, files: Sequence[KernelFile]) -> None:
    """
    Put the functions of kernels that a graph calls, and that the module does not have, into it.

    Raises UserError, located at the op, for a call whose operands have sizes that are not known.
    """
    functions = frozenset(op.sym_name.data for op in module.ops if isinstance(op, FuncOp))
    kernels = called_kernels_of(files, functions)
    for op in [each for each in module.walk() if isinstance(each, KernelOp)]:
        name = op.callee.string_value()
        if name not in kernels.by_name or SymbolTable.lookup_symbol(op, op.callee) is not None:
            continue
        if not all(is_static(value.type) for value in op.inputs):
            message = f"the sizes of what @{name} is called with must be known"
            raise UserError(message, loc=location_of(op), notes=["bind the dimensions before: penstock import --dim"])
        shapes = [tensor_of(value).get_shape() for value in op.inputs]
        op.callee = SymbolRefAttr(kernels.function(name, shapes, {}, f"{op.name} at {location_of(op)}").sym_name)
    module.body.block.add_ops(kernels.functions)
