# SPDX-License-Identifier: Apache-2.0
"""
What kernels compute, seen before they are tiled: the contraction by which their traffic is judged.

A kernel is looked at before every pass, from when it has a device: one that a pass has tiled has no contraction on its
arguments any more, and what was seen last stays. So it does not matter which pass tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import BlockArgument, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.access import access_of, linear_form
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.analysis.kernels import is_contraction, machine_kernels, origin_of
from penstock.passes.analysis.scope_paths import intermediates
from penstock.passes.planning.traffic_bounds import ContractionKernel, ContractionOperand, OperandIndex


@dataclass(frozen=True)
class Workload:
    """The contraction of a kernel, and the tensors that the kernel takes and gives."""

    contraction: ContractionKernel
    inputs: tuple[int, int]
    """The arguments that are multiplied."""
    sizes: tuple[int, ...]
    """The bytes of each argument, then those of each result."""

    def off_chip(self, spaces: Sequence[str]) -> ContractionKernel | None:
        """
        The contraction where arguments and results are in these scopes. What stays in a scope moves no bytes; None if
        that is one of the factors or the product, because then its room is not a matter of tiling.
        """
        here = [space == DRAM for space in spaces]
        if len(here) != len(self.sizes) or not all(here[number] for number in (*self.inputs, -1)):
            return None
        fixed = sum(size for number, size in enumerate(self.sizes) if here[number] and number not in self.inputs)
        return replace(self.contraction, fixed_bytes=fixed)


@dataclass
class Workloads:
    """An observer of passes: what each kernel of the machine multiplies before it is tiled."""

    found: dict[str, Workload] = field(default_factory=dict[str, Workload])

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.read(module)

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        pass

    def read(self, module: ModuleOp) -> None:
        """Note what the kernels of a module compute that are at the tensor level and not tiled."""
        target, kernels = machine_kernels(module)
        for kernel in kernels:
            if target is not None and (workload := workload_of(kernel, target)) is not None:
                self.found[kernel.sym_name.data] = workload

    def of(self, kernel: str, spaces: Sequence[str]) -> ContractionKernel | None:
        """The contraction of a kernel whose arguments are in these scopes, or of the kernel that it was made of."""
        workload = self.found.get(kernel) or self.found.get(origin_of(kernel))
        return workload.off_chip(spaces) if workload is not None else None


def workload_of(kernel: func.FuncOp, target: TargetOp) -> Workload | None:
    """
    The contraction of a kernel at tensor level; None unless it has exactly one, of which an intrinsic is made, on two
    arguments of the kernel that are padded at most.
    """
    if (sizes := _sizes_at_the_borders(kernel)) is None:
        return None
    generics = [op for op in kernel.walk() if isinstance(op, GenericOp) and is_contraction(op)]
    if len(generics) != 1 or len(generics[0].inputs) != 2 or generics[0].parent is not kernel.body.block:
        return None
    generic = generics[0]
    access = access_of(generic)
    matches = candidates(access, target)[0] if access is not None else []
    if not matches:
        return None
    extents = tuple(generic.get_static_loop_ranges())
    operands: list[ContractionOperand] = []
    arguments: list[int] = []
    for number, (value, map_attr) in enumerate(zip(generic.operands, generic.indexing_maps, strict=True)):
        source, low = (value, None) if number == len(generic.inputs) else _without_padding(value)
        operand = _operand(source, low, map_attr.data, extents, matches[0], number, target)
        if operand is None:
            return None
        operands.append(operand)
        arguments += [source.index] if isinstance(source, BlockArgument) and operand.moved_bytes else []
    if len(set(arguments)) != 2:
        return None
    parallel = tuple(kind.data == IteratorType.PARALLEL for kind in generic.iterator_types)
    blocks = {dim: most for dim, (_, most) in matches[0].blocks.items()}
    fixed = sum(size for number, size in enumerate(sizes) if number not in arguments)
    contraction = ContractionKernel(extents, parallel, tuple(operands), blocks, fixed)
    return Workload(contraction, (arguments[0], arguments[1]), tuple(sizes))


def _sizes_at_the_borders(kernel: func.FuncOp) -> list[int] | None:
    """The bytes of each argument and result; None if one is no tensor of a static shape."""
    terminator = kernel.body.block.last_op
    results = terminator.operands if isinstance(terminator, func.ReturnOp) else ()
    sizes = [_size(value) for value in (*kernel.body.block.args, *results)]
    known = [size for size in sizes if size is not None]
    return known if len(known) == len(sizes) else None


def _size(value: SSAValue) -> int | None:
    if not isa(value.type, TensorType) or not value.type.has_static_shape():
        return None
    return prod(value.type.get_shape()) * element_bytes(value.type)


def _without_padding(value: SSAValue) -> tuple[SSAValue, tuple[int, ...] | None]:
    if isinstance(value.owner, tensor.PadOp):
        return value.owner.source, value.owner.static_low.get_values()
    return value, None


def _operand(
    value: SSAValue,
    low: tuple[int, ...] | None,
    index_map: AffineMap,
    extents: tuple[int, ...],
    match: Match,
    number: int,
    target: TargetOp,
) -> ContractionOperand | None:
    """An operand, which for an input must be an argument of the kernel."""
    is_output = number == len(match.buffers) - 1
    if not (is_output or isinstance(value, BlockArgument)) or not isa(value.type, TensorType):
        return None
    constants, rows = linear_form(index_map)
    if any(coefficient < 0 for row in rows for coefficient in row) or (low is not None and DYNAMIC_INDEX in low):
        return None
    held = match.scope_of_operand(number)
    if held == DRAM:
        return None
    # Between off chip and the scope of the intrinsic, traffic is decided by the scope that is filled from off chip.
    scope = (*intermediates(target, DRAM, held), held)[0]
    padding = low or (0,) * len(rows)
    indices = tuple(
        OperandIndex(
            tuple((dim, coefficient) for dim, coefficient in enumerate(row) if coefficient and extents[dim] > 1),
            0 if is_output else constant - before,
            (1 << 62) if is_output else bound,
        )
        for constant, row, before, bound in zip(constants, rows, padding, value.type.get_shape(), strict=True)
    )
    return ContractionOperand(
        value.name_hint or f"operand {number}",
        scope,
        indices,
        element_bytes(value.type),
        0 if is_output else element_bytes(value.type),
        target.scope(scope).granule_bytes,
        match.adjoining(number),
    )
