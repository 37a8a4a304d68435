// $ penstock compile programs/convolution.mlir --schedule %s
// illegal_reorder.mlir:12:3: error: the order %d6, %d5 reverses a dependence
// note: it is about what is at programs/convolution.mlir:2:3
// note: memref.load (programs/convolution.mlir:2:3) reads %conv, which memref.store (programs/convolution.mlir:2:3) writes 1 iteration of %d5 later and 1 iteration of %d6 earlier: direction (<, >)
transform.named_sequence @fused_2(%kernel: !transform.any_op {transform.readonly}) {
  %loops = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
  %ops = transform.structured.match ops{["linalg.generic"]} in %loops : (!transform.any_op) -> !transform.any_op
  %zero, %sum = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %nest = transform.structured.convert_to_loops %sum : (!transform.any_op) -> !transform.any_op
  %all:7 = transform.split_handle %nest
    : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
  schedule.reorder %all#6, %all#5
  transform.yield
}
