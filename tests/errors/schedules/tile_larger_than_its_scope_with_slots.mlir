// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// tile_larger_than_its_scope_with_slots.mlir:7:3: error: the tile [64, 256, 128] does not fit scope "spad": it needs 327,680 bytes of its 262,144
// note: it fits with one slot of what the loops refill: 163,840 bytes
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %tile, %zeros, %loops:3 = schedule.tile %product fusing(%zero) sizes [64, 256, 128] {slots = {spad = 2 : i64}}
  transform.yield
}
