# SPDX-License-Identifier: Apache-2.0
"""What Penstock registers with xDSL: every dialect, every pass and the target `c`, each imported when first used."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from xdsl.universe import Universe

# Imported for what it makes xDSL's classes do: xDSL's own driver, too, is to read and print our text exactly.
from penstock.dialects import context  # noqa: F401  # pyright: ignore[reportUnusedImport]

DIALECTS: dict[str, str] = {
    "accel": "penstock.dialects.accel:Accel",
    "graph": "penstock.dialects.graph:Graph",
    "machine": "penstock.dialects.machine:Machine",
    "mem": "penstock.dialects.mem:Mem",
    "schedule": "penstock.dialects.schedule:ScheduleDialect",
}
"""Name of each dialect -> where it is, as `module:object`."""

PASSES: dict[str, str] = {
    "accel-assign-queues": "penstock.passes.accel.accel_assign_queues:AccelAssignQueuesPass",
    "accel-check-hazards": "penstock.passes.accel.accel_check_hazards:AccelCheckHazardsPass",
    "accel-configure": "penstock.passes.accel.accel_configure:AccelConfigurePass",
    "accel-pipeline": "penstock.passes.accel.accel_pipeline:AccelPipelinePass",
    "accel-to-issues": "penstock.lowering.accel_to_issues:AccelToIssuesPass",
    "accel-tokens-to-barriers": "penstock.passes.accel.accel_tokens_to_barriers:AccelTokensToBarriersPass",
    "accel-tokens-to-waits": "penstock.passes.accel.accel_tokens_to_waits:AccelTokensToWaitsPass",
    "accel-virtual-threads": "penstock.passes.accel.accel_virtual_threads:AccelVirtualThreadsPass",
    "assign-devices": "penstock.passes.tensor.assign_devices:AssignDevicesPass",
    "collapse-dims": "penstock.passes.tensor.collapse_dims:CollapseDimsPass",
    "attach-machine": "penstock.runtime.machines:AttachMachinePass",
    "bind-dims": "penstock.passes.graph.bind_dims:BindDimsPass",
    "combine-matmuls": "penstock.passes.graph.combine_matmuls:CombineMatmulsPass",
    "contract": "penstock.passes.loop.contract:ContractPass",
    "copy-parts": "penstock.passes.tensor.copy_parts:CopyPartsPass",
    "compute-in-results": "penstock.passes.loop.compute_in_results:ComputeInResultsPass",
    "prefetch": "penstock.passes.loop.prefetch:PrefetchPass",
    "expose-values": "penstock.passes.graph.expose_values:ExposeValuesPass",
    "fold-batch-norm": "penstock.passes.graph.fold_batch_norm:FoldBatchNormPass",
    "fold-constants": "penstock.passes.graph.fold_constants:FoldConstantsPass",
    "forall-to-for": "penstock.passes.loop.forall_to_for:ForallToForPass",
    "fuse-elementwise": "penstock.passes.tensor.fuse_elementwise:FuseElementwisePass",
    "fuse-attention": "penstock.passes.graph.fuse_attention:FuseAttentionPass",
    "fold-scale": "penstock.passes.graph.fold_scale:FoldScalePass",
    "generalize-named-ops": "penstock.passes.tensor.generalize_named_ops:GeneralizeNamedOpsPass",
    "pack-weights": "penstock.passes.graph.pack_weights:PackWeightsPass",
    "graph-remat": "penstock.passes.graph.remat:GraphRematPass",
    "graph-fuse": "penstock.passes.graph.fuse:GraphFusePass",
    "graph-gradient": "penstock.passes.graph.gradient:GraphGradientPass",
    "graph-to-tensor": "penstock.lowering.graph_to_tensor:GraphToTensorPass",
    "insert-barriers": "penstock.passes.loop.insert_barriers:InsertBarriersPass",
    "insert-copies": "penstock.passes.tensor.insert_copies:InsertCopiesPass",
    "layout": "penstock.passes.graph.layout:LayoutPass",
    "lift-cf-to-scf": "penstock.passes.lift_cf_to_scf:LiftCfToScfPass",
    "loop-to-accel": "penstock.lowering.loop_to_accel:LoopToAccelPass",
    "lower-to-upstream": "penstock.lowering.loop_to_upstream:LowerToUpstreamPass",
    "multi-buffer": "penstock.passes.loop.multi_buffer:MultiBufferPass",
    "math-polynomial-approximation": "penstock.passes.loop.polynomial_approximation:MathPolynomialApproximationPass",
    "measure": "penstock.runtime.measure:MeasurePass",
    "mem-liveness": "penstock.passes.loop.mem_liveness:MemLivenessPass",
    "mem-plan": "penstock.passes.loop.mem_plan:MemPlanPass",
    "mem-verify": "penstock.passes.loop.mem_verify:MemVerifyPass",
    "integer-arithmetic": "penstock.passes.graph.integer_arithmetic:IntegerArithmeticPass",
    "quantize": "penstock.passes.graph.quantize:QuantizePass",
    "mem-promote": "penstock.passes.loop.mem_promote:MemPromotePass",
    "merge-kernels": "penstock.passes.accel.merge_kernels:MergeKernelsPass",
    "order-ops": "penstock.passes.loop.order_ops:OrderOpsPass",
    "outline-kernels": "penstock.passes.tensor.outline_kernels:OutlineKernelsPass",
    "topological-sort": "penstock.passes.graph.topological_sort:TopologicalSortPass",
    "overwrite-operands": "penstock.passes.loop.overwrite_operands:OverwriteOperandsPass",
    "patch": "penstock.passes.graph.patch:PatchPass",
    "parallelize": "penstock.passes.loop.parallelize:ParallelizePass",
    "promote": "penstock.passes.loop.promote:PromotePass",
    "promote-levels": "penstock.passes.loop.promote_levels:PromoteLevelsPass",
    "reorder-matmuls": "penstock.passes.graph.reorder_matmuls:ReorderMatmulsPass",
    "rotate-carried": "penstock.passes.loop.rotate_carried:RotateCarriedPass",
    "simplify": "penstock.passes.graph.simplify:SimplifyPass",
    "storage-type": "penstock.passes.graph.storage_type:StorageTypePass",
    "tensor-to-loop": "penstock.lowering.tensor_to_loop:TensorToLoopPass",
    "tensorize": "penstock.passes.loop.tensorize:TensorizePass",
    "block-diagonal": "penstock.passes.graph.block_diagonal:BlockDiagonalPass",
    "space-to-depth": "penstock.passes.graph.space_to_depth:SpaceToDepthPass",
    "transpose-operands": "penstock.passes.graph.transpose_operands:TransposeOperandsPass",
    "tile": "penstock.passes.tensor.tile:TilePass",
    "value-cse": "penstock.passes.value_cse:ValueCsePass",
    "value-dce": "penstock.passes.value_dce:ValueDcePass",
}
"""Name of each pass -> where its class is, as `module:class`."""


def _factory(where: str) -> Callable[[], Any]:
    return lambda: resolve_name(where)


PENSTOCK = Universe(
    all_dialects={name: _factory(where) for name, where in DIALECTS.items()},
    all_passes={name: _factory(where) for name, where in PASSES.items()},
    all_targets={
        "c": _factory("penstock.lowering.to_c:CTarget"),
        "llvm-ir": _factory("penstock.lowering.to_llvm:LlvmTarget"),
    },
)
