# SPDX-License-Identifier: Apache-2.0
"""Computing ops by an intrinsic of the machine."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.diagnostics import UserError, location_of, nearest_or_all
from penstock.dialects.machine import TargetOp
from penstock.dialects.schedule_memory import TensorizeOp
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.analysis.kernels import processor_of
from penstock.passes.schedule.staging import require_machine
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(TensorizeOp)
def tensorize(state: TransformState, op: TensorizeOp) -> Sequence[Payload]:
    """
    Name the intrinsic that ops are, in their `library_call`; see `schedule.tensorize`. Those that a call of a library
    of the host computes may be on tensors: it takes operands that are anywhere in memory.

    Raises UserError for an intrinsic that the machine lacks, and for an op that is not that one, with the index, the
    operand or the scope that differs.

    Before:
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k() attributes {device = @gemmini_fp32} {
      %a = mem.buffer : memref<8x4xf32, "spad">
      %b = mem.buffer : memref<4x4xf32, "spad">
      %c = mem.buffer : memref<8x4xf32, "acc">
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : memref<8x4xf32, "spad">, memref<4x4xf32, "spad">) outs(%c : memref<8x4xf32, "acc">) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      func.return
    }
    ```
    After (`schedule.tensorize %generic @gemm` or `tensorize` on `gemmini-fp32`):
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k() attributes {device = @gemmini_fp32} {
      %a = mem.buffer : memref<8x4xf32, "spad">
      %b = mem.buffer : memref<4x4xf32, "spad">
      %c = mem.buffer : memref<8x4xf32, "acc">
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"],
          library_call = "gemm"}
          ins(%a, %b : memref<8x4xf32, "spad">, memref<4x4xf32, "spad">) outs(%c : memref<8x4xf32, "acc">) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      func.return
    }
    ```
    """
    module = state.kernel.get_toplevel_object()
    host = processor_of(module) if isinstance(module, ModuleOp) else None
    target, name = host or require_machine(state), op.intrinsic.string_value()
    if name not in (known := target.intrinsics()):
        raise UserError(
            f"@{target.sym_name.data} has no intrinsic @{name}", notes=[nearest_or_all(name, known, "intrinsics")]
        )
    targets: list[GenericOp] = []
    for each in state.payload(op.target):
        if not isinstance(each, GenericOp):
            raise UserError(f"what an intrinsic computes is a linalg.generic, not {each.name}", loc=location_of(each))
        if each.results and not known[name].is_call:
            raise UserError(
                "this op is on tensors, and an intrinsic is on scopes",
                loc=location_of(each),
                notes=['tensors become memrefs in the pass "tensor-to-loop", after which this is possible'],
            )
        match = state.matches.get(each)
        if match is None or match.intrinsic.sym_name.data != name:
            match_named(each, name, target)
        targets.append(each)
    for each in targets:
        each.library_call = StringAttr(name)
    return ()


def match_named(generic: GenericOp, name: str, target: TargetOp) -> Match:
    """How `generic` is the intrinsic of that name, with its operands where they are; raises UserError if it is not."""
    access = access_of(generic, placed=not generic.results)
    matches, failures = candidates(access, target) if access is not None else ([], [])
    for match in matches:
        if match.intrinsic.sym_name.data == name:
            return match
    reasons = [failure.reason for failure in failures if failure.intrinsic == name]
    raise UserError(
        f"this op is not @{name}: {', '.join(reasons) or 'it has several outputs, a dynamic domain, or its own index'}",
        loc=location_of(generic),
        notes=[f"it is @{match.intrinsic.sym_name.data}" for match in matches],
    )
