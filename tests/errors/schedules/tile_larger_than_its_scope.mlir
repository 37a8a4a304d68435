// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// tile_larger_than_its_scope.mlir:7:3: error: the tile [256, 512, 128] does not fit scope "spad": it needs 393,216 bytes of its 262,144
// note: the largest that fits within these sizes is [64, 256, 128]
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %tile, %zeros, %rows, %sums = schedule.tile %product fusing(%zero) sizes [256, 0, 128]
  transform.yield
}
