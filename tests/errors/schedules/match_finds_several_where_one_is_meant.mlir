// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// match_finds_several_where_one_is_meant.mlir:7:3: error: one operation is meant, and the handle stands for 2
// note: transform.split_handle makes a handle for each
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %tile, %row = schedule.tile %ops sizes [32, 0, 0]
  transform.yield
}
