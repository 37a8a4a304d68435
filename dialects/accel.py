# SPDX-License-Identifier: Apache-2.0
"""
`accel`: asynchronous commands of an accelerator, ordered by tokens.

A command is issued to a unit and returns a token; it starts when all commands it comes `after` are complete.
A token is an event: it has any number of waiters, and completes once. Nothing else orders commands of
different units, and a kernel ends quiescent, in `accel.barrier`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects import accel_issue
from penstock.dialects.diagnostics import UnknownName
from penstock.dialects.machine import DRAM, IMMEDIATE, IntrinsicOp, OperandSpec, TargetOp, find_target
from penstock.dialects.mem import scope_of
from penstock.dialects.window import IntegerList, Window, WindowedTransfer


@irdl_attr_definition
class TokenType(ParametrizedAttribute, TypeAttribute):
    """The completion of a command: `!accel.token`."""

    name = "accel.token"


@irdl_op_definition
class ReadyOp(IRDLOperation):
    """
    A token that is complete when all of `dependencies` are: at once when there are none.

    ```mlir
    %t = accel.ready
    %u = accel.ready after (%t, %s)
    ```
    """

    name = "accel.ready"

    dependencies = var_operand_def(TokenType)
    """The tokens that all have to be complete."""
    token = result_def(TokenType)
    """Complete when they are."""

    # Two of them may be merged, but it must stay where its waiters can see it.
    traits = traits_def(MemoryReadEffect())
    assembly_format = "(`after` `(` $dependencies^ `)`)? attr-dict"

    def __init__(self, dependencies: Sequence[SSAValue] = ()):
        super().__init__(operands=[dependencies], result_types=[TokenType()])


@irdl_op_definition
class DmaOp(WindowedTransfer):
    """
    Start a transfer of a static box on the engine `engine`, a `machine.dma`.

    Windows are those of `mem.copy`. With `clipped`, what the window of the source lacks is left as it was in
    the destination, for an engine that cannot pad; another command has filled it.

    ```mlir
    %t = accel.dma %image[%i, 0] to %tile on "mvin" after (%free)
           : memref<64x64xf32> to memref<8x64xf32, "spad">
    ```
    """

    name = "accel.dma"

    clipped = opt_prop_def(UnitAttr)
    engine = prop_def(StringAttr)
    """The name of a `machine.dma`."""
    dependencies = var_operand_def(TokenType)
    """What has to be complete before it starts."""
    token = result_def(TokenType)
    """Its completion."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())

    assembly_format = (
        "$source `` custom<Window>($source_offsets, $static_source_offsets)"
        " `to` $dest `` custom<Window>($dest_offsets, $static_dest_offsets)"
        " (`else` $padding^)? (`clipped` $clipped^)? `on` $engine"
        " (`after` `(` $dependencies^ `)`)? attr-dict `:` type($source) `to` type($dest)"
    )
    custom_directives = (Window,)

    def __init__(
        self,
        source: SSAValue | Operation,
        dest: SSAValue | Operation,
        engine: str,
        *,
        source_offsets: Sequence[int | SSAValue] = (),
        dest_offsets: Sequence[int | SSAValue] = (),
        padding: SSAValue | None = None,
        clipped: bool = False,
        dependencies: Sequence[SSAValue] = (),
    ):
        dynamic, static = self.split_offsets(source_offsets, dest_offsets)
        super().__init__(
            operands=[dependencies, source, dest, *dynamic, padding],
            properties={
                **static,
                "engine": StringAttr(engine),
                "clipped": UnitAttr() if clipped else None,
            },
            result_types=[TokenType()],
        )

    def verify_(self) -> None:
        if self.clipped is not None and self.padding is not None:
            raise VerifyException("`clipped` leaves what `else` would fill: give one of the two")
        target = _target_of(self)
        if target is not None:
            engine = target.dmas().get(self.engine.data)
            if engine is None:
                message = f'@{target.sym_name.data} has no DMA engine "{self.engine.data}"'
                raise UnknownName(message, self.engine.data, target.dmas(), "its engines")
            start, end = (_scope_in(target, type) for type in (self.source_type, self.dest_type))
            if start not in engine.sources or end not in engine.destinations:
                raise VerifyException(f'the engine "{self.engine.data}" does not go from "{start}" to "{end}"')
        self.verify_window(may_be_out_of_bounds=self.padding is not None or self.clipped is not None)


@irdl_op_definition
class ExecOp(IRDLOperation):
    """
    Run an intrinsic of the machine over an iteration domain.

    The meaning is that of the intrinsic's own `linalg.generic`, whose body is executed at every point of the
    domain `extents`, in the order of its dims, with the operands indexed by `maps`. A unit runs it in blocks of
    the intrinsic's shape; n blocks cost n * ii + depth cycles. Where an operand is stationary the dims that move
    through the result and not through it are innermost, and each block of it costs its load. The scalars that the
    intrinsic takes beside memory travel in the command, as `imm`. The written operand may be one that is read, if both
    are indexed by the same map.

    ```mlir
    %t = accel.exec @gemm extents [16, 32, 64] maps [
           affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]
           (%a, %b, %acc) after (%t0)
           : memref<16x64xf32, "spad">, memref<64x32xf32, "spad">, memref<16x32xf32, "acc">
    %u = accel.exec @max_imm imm [0.000000e+00 : f32] extents [512] maps [
           affine_map<(n) -> (n)>, affine_map<(n) -> (n)>] (%x, %y) after (%t)
           : memref<512xf32, "spm">, memref<512xf32, "spm">
    ```
    """

    name = "accel.exec"

    intrinsic = prop_def(SymbolRefAttr)
    """The name of a `machine.intrinsic`."""
    immediates = opt_prop_def(ArrayAttr[IntegerAttr | FloatAttr])
    """The intrinsic's immediates, in its order; absent if it takes none."""
    extents = prop_def(DenseArrayBase.constr(i64))
    """The size of each dim of the domain."""
    maps = prop_def(ArrayAttr[AffineMapAttr])
    """For each of the buffers the index of its element at a point of the domain."""
    buffers = var_operand_def(MemRefType)
    """One memref for each operand of the intrinsic that is no immediate, in its order."""
    dependencies = var_operand_def(TokenType)
    """What has to be complete before it starts."""
    token = result_def(TokenType)
    """Its completion."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())

    assembly_format = (
        "$intrinsic (`imm` $immediates^)? `extents` custom<IntegerList>($extents) `maps` $maps `(` $buffers `)`"
        " (`after` `(` $dependencies^ `)`)? attr-dict `:` type($buffers)"
    )
    custom_directives = (IntegerList,)

    def __init__(
        self,
        intrinsic: str,
        extents: Sequence[int],
        maps: Sequence[AffineMapAttr],
        buffers: Sequence[SSAValue],
        *,
        immediates: Sequence[Attribute] = (),
        dependencies: Sequence[SSAValue] = (),
    ):
        super().__init__(
            operands=[buffers, dependencies],
            properties={
                "intrinsic": SymbolRefAttr(intrinsic),
                "immediates": ArrayAttr(immediates) if immediates else None,
                "extents": DenseArrayBase.from_list(i64, extents),
                "maps": ArrayAttr(maps),
            },
            result_types=[TokenType()],
        )

    @property
    def intrinsic_name(self) -> str:
        return self.intrinsic.string_value()

    @property
    def immediate_values(self) -> tuple[IntegerAttr | FloatAttr, ...]:
        return () if self.immediates is None else self.immediates.data

    def verify_(self) -> None:
        extents = self.extents.get_values()
        if any(extent < 1 for extent in extents):
            raise VerifyException(f"every extent must be positive, not {list(extents)}")
        if len(self.maps) != len(self.buffers):
            raise VerifyException(f"{len(self.maps)} maps for {len(self.buffers)} operands")
        if (target := _target_of(self)) is not None:
            self._verify_against(target)
        for position, (buffer, map_attr) in enumerate(zip(self.buffers, self.maps, strict=True)):
            assert isa(buffer.type, MemRefType)
            index_map = map_attr.data
            if index_map.num_dims != len(extents) or index_map.num_symbols:
                raise VerifyException(f"map {position} has {index_map.num_dims} dims for {len(extents)} extents")
            if len(index_map.results) != buffer.type.get_num_dims():
                raise VerifyException(f"map {position} yields {len(index_map.results)} indices for {buffer.type}")
            # Maps are linear with non-negative coefficients, so the corners bound the indices.
            corners = (
                index_map.eval([0] * len(extents), []),
                index_map.eval([extent - 1 for extent in extents], []),
            )
            for first, last, size in zip(*corners, buffer.type.get_shape(), strict=True):
                if min(first, last) < 0 or max(first, last) >= size:
                    raise VerifyException(
                        f"operand {position} is indexed from {first} to {last} in a dim of size {size}"
                    )

    def _verify_against(self, target: TargetOp) -> None:
        """The operands live where the intrinsic requires them."""
        intrinsic = target.intrinsics().get(self.intrinsic_name)
        if intrinsic is None:
            message = f"@{target.sym_name.data} has no intrinsic @{self.intrinsic_name}"
            raise UnknownName(message, self.intrinsic_name, target.intrinsics(), "its intrinsics")
        every = intrinsic.operand_specs()
        self._verify_immediates(intrinsic, [spec for spec in every if spec.role == IMMEDIATE])
        specs = [spec for spec in every if spec.role != IMMEDIATE]
        if len(specs) != len(self.buffers):
            raise VerifyException(f"@{self.intrinsic_name} takes {len(specs)} operands, not {len(self.buffers)}")
        for spec, buffer in zip(specs, self.buffers, strict=True):
            assert isa(buffer.type, MemRefType)
            scope = scope_of(buffer.type) or DRAM
            if (scope, buffer.type.element_type) != (spec.scope, spec.dtype):
                raise VerifyException(
                    f'operand {spec.name} of @{self.intrinsic_name} is {spec.dtype} in "{spec.scope}", '
                    f'not {buffer.type.element_type} in "{scope}"'
                )

    def _verify_immediates(self, intrinsic: IntrinsicOp, specs: Sequence[OperandSpec]) -> None:
        values = self.immediate_values
        if len(values) != len(specs):
            raise VerifyException(f"@{self.intrinsic_name} takes {len(specs)} immediates, not {len(values)}")
        for spec, value in zip(specs, values, strict=True):
            if value.type != spec.dtype:
                raise VerifyException(f"the immediate of @{self.intrinsic_name} is {spec.dtype}, not {value.type}")
            if (fault := intrinsic.immediate_fault(value)) is not None:
                raise VerifyException(f"@{self.intrinsic_name}: {fault}")


@irdl_op_definition
class WaitOp(IRDLOperation):
    """
    The host waits until all of `tokens` are complete.

    ```mlir
    accel.wait %t, %u
    ```
    """

    name = "accel.wait"

    tokens = var_operand_def(TokenType)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$tokens attr-dict"

    def __init__(self, tokens: Sequence[SSAValue]):
        super().__init__(operands=[tokens])


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """
    The host waits until every unit is quiescent; a kernel ends in one.

    ```mlir
    accel.barrier
    ```
    """

    name = "accel.barrier"

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"


class QueueAccess(IRDLOperation, ABC):
    """A unit's access to a queue between it and `peer`."""

    unit = prop_def(StringAttr)
    """The unit that the access is issued to."""
    peer = prop_def(StringAttr)
    """The unit at the other end of the queue."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def __init__(self, unit: str, peer: str):
        super().__init__(properties={"unit": StringAttr(unit), "peer": StringAttr(peer)})


@irdl_op_definition
class PushOp(QueueAccess):
    """
    Issued to `unit`: when its earlier commands are complete, it pushes a token to the queue towards `peer`.

    With `accel.pop` the queue form of ordering, decoupled access-execute: the k-th pop of a queue receives the
    k-th push. Unlike an SSA token, a queue's token has exactly one waiter.

    ```mlir
    accel.push "load" to "execute"
    ```
    """

    name = "accel.push"
    assembly_format = "$unit `to` $peer attr-dict"

    def verify_(self) -> None:
        _verify_queue(self, self.unit.data, self.peer.data)


@irdl_op_definition
class PopOp(QueueAccess):
    """
    Issued to `unit`: its later commands start when a token has come through the queue from `peer`.

    ```mlir
    accel.pop "execute" from "load"
    ```
    """

    name = "accel.pop"
    assembly_format = "$unit `from` $peer attr-dict"

    def verify_(self) -> None:
        _verify_queue(self, self.peer.data, self.unit.data)


def _verify_queue(op: IRDLOperation, source: str, destination: str) -> None:
    """If the machine is in the module, it has a queue from `source` to `destination`."""
    target = _target_of(op)
    if target is None:
        return
    for unit in (source, destination):
        if unit not in target.units():
            raise UnknownName(f'@{target.sym_name.data} has no unit "{unit}"', unit, target.units(), "its units")
    queues = [(queue.source, queue.destination) for queue in target.queues()]
    if (source, destination) not in queues:
        message = f'@{target.sym_name.data} has no queue from "{source}" to "{destination}"'
        raise UnknownName(message, "", [f"from {start} to {end}" for start, end in queues], "its queues")


def _scope_in(target: TargetOp, type: MemRefType) -> str:
    """The scope of a memref, which the machine must have, or "dram"."""
    scope = scope_of(type) or DRAM
    if scope != DRAM and scope not in target.scopes():
        raise UnknownName(f'@{target.sym_name.data} has no scope "{scope}"', scope, target.scopes(), "its scopes")
    return scope


def _target_of(op: Operation) -> TargetOp | None:
    """The machine in the module around `op`; None if it is not there (yet)."""
    top: Operation = op
    while (parent := top.parent_op()) is not None:
        top = parent
    return find_target(top) if isinstance(top, ModuleOp) else None


Accel = Dialect("accel", [ReadyOp, DmaOp, ExecOp, WaitOp, BarrierOp, PushOp, PopOp, *accel_issue.OPS], [TokenType])
