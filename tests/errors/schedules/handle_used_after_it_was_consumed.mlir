// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// handle_used_after_it_was_consumed.mlir:9:3: error: %product is used after schedule.tile has replaced what it stood for
// note: that is at handle_used_after_it_was_consumed.mlir:8:3
// note: use the handles that it returns, or match again
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %tile, %zeros, %row, %sum = schedule.tile %product fusing(%zero) sizes [32, 0, 32]
  %again, %rows = transform.structured.tile_using_for %product tile_sizes [16, 0, 0]
    : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  transform.yield
}
