// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// kernel_has_other_shapes.mlir:4:1: error: this is the schedule of another kernel @fused_0, of type (tensor<512x64xf32>, tensor<64x512xf32>) -> tensor<512x512xf32>
// note: the program has one of type (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly})
    attributes {schedule.kernel = (tensor<512x64xf32>, tensor<64x512xf32>) -> tensor<512x512xf32>} {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %tile, %zeros, %row, %sum = schedule.tile %product fusing(%zero) sizes [32, 0, 32]
  transform.yield
}
