// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// kernel_does_not_exist.mlir:4:1: error: the program has no kernel @fused_1
// note: did you mean "fused_0"?
transform.named_sequence @fused_1(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %tile, %zeros, %row, %sum = schedule.tile %product fusing(%zero) sizes [32, 0, 32]
  transform.yield
}
