"""Decide where each kernel runs: on the machine whose intrinsics cover it, or on the host."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.machine import TargetOp
from penstock.passes.kernels import (
    DEVICE,
    HOST,
    MACS,
    REMARK,
    device_of,
    kernels,
    machine_of,
    multiply_accumulates,
)
from penstock.passes.tensor.outline import outline
from penstock.passes.tensor.segments import Choice, Segment, choose, segments_of


def _accumulate_in_place(generic: GenericOp, number: int) -> None:
    """Make input `number` the output's initial value; the body reads it there."""
    source = generic.inputs[number]
    maps = [m for position, m in enumerate(generic.indexing_maps) if position != number]
    inputs = [v for position, v in enumerate(generic.inputs) if position != number]
    body = generic.detach_region(generic.body)
    block = body.block
    block.args[number].replace_all_uses_with(block.args[-1])
    block.erase_arg(block.args[number])
    new = GenericOp(inputs, [source], body, maps, generic.iterator_types, [r.type for r in generic.results])
    new.location = generic.location
    Rewriter.replace_op(generic, new)


def _mark(kernel: func.FuncOp, segment: Segment, machine: str) -> None:
    kernel.attributes[DEVICE] = SymbolRefAttr(machine if segment.on_machine else HOST)
    if macs := multiply_accumulates(kernel):
        kernel.attributes[MACS] = IntegerAttr(macs, i64)
    if not segment.on_machine and segment.remark:
        kernel.attributes[REMARK] = StringAttr(segment.remark)


@dataclass(frozen=True)
class AssignDevicesPass(ModulePass):
    """
    Give every kernel a `device`: the machine in the module where its intrinsics cover the kernel, else `@host`.

    Requires the tensor level. A kernel whose ops differ is cut into kernels that do not; so is one that a single
    tile cannot hold (two reductions, a stored value read again, a padded result). Where an intrinsic updates its
    output, the generic is rewritten to start from one of its inputs. A kernel stays on the host if only DMA
    intrinsics cover it. Guarantees: every kernel has a device; a kernel on the machine has one result, at most
    one reduction, and every generic in it matches an intrinsic. The reason for the
    host is in `device_remark`, and the multiply-accumulates of each kernel in `macs`.

    Before:
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @relu(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %zero = arith.constant 0.000000e+00 : f32
      %e = tensor.empty() : tensor<4x4xf32>
      %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %m = arith.maximumf %in, %zero : f32
        linalg.yield %m : f32
      } -> tensor<4x4xf32>
      func.return %y : tensor<4x4xf32>
    }
    ```
    After (`assign-devices` on `gemmini-fp32`):
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @relu(%x: tensor<4x4xf32>) -> tensor<4x4xf32>
        attributes {device = @host, device_remark = "only a transfer computes it, and nothing is transferred"} {
      %zero = arith.constant 0.000000e+00 : f32
      %e = tensor.empty() : tensor<4x4xf32>
      %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %m = arith.maximumf %in, %zero : f32
        linalg.yield %m : f32
      } -> tensor<4x4xf32>
      func.return %y : tensor<4x4xf32>
    }
    ```
    """

    name = "assign-devices"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = machine_of(op)
        machine = HOST if target is None else target.sym_name.data
        for kernel in kernels(op):
            if device_of(kernel) is not None:
                continue
            generics = [o for o in kernel.body.block.ops if isinstance(o, GenericOp)]
            choices: dict[GenericOp, Choice | str] = {
                generic: "there is no machine but the host" if target is None else choose(generic, target)
                for generic in generics
            }
            segments = segments_of(kernel, choices) or [Segment(False)]
            if len(segments) == 1:
                _mark(kernel, segments[0], machine)
            else:
                parts = outline(kernel, [segment.generics for segment in segments])
                for part, segment in zip(parts, segments, strict=True):
                    _mark(part, segment, machine)
        if target is not None:
            self._accumulate(op, target, machine)

    def _accumulate(self, module: ModuleOp, target: TargetOp, machine: str) -> None:
        """Rewrite the generics of the machine's kernels to the form that their intrinsic has."""
        for kernel in kernels(module):
            if device_of(kernel) != machine:
                continue
            for generic in [o for o in kernel.body.block.ops if isinstance(o, GenericOp)]:
                choice = choose(generic, target)
                if isinstance(choice, Choice) and choice.in_place is not None:
                    _accumulate_in_place(generic, choice.in_place)
