// $ penstock-opt programs/columns.mlir --machine gemmini-fp32 -p promote --schedule %s
// tensorize_does_not_match.mlir:10:3: error: this op is not @gemm: nothing can play its dim n: d1 does not move operand b by one element; nothing can play its dim k: d2 moves operand b by 4 bytes, not a multiple of 16; d1 moves operand acc by 4 bytes, not a multiple of 16
// note: it is about what is at programs/columns.mlir:4:3
transform.named_sequence @product(%kernel: !transform.any_op {transform.readonly}) {
  %loops = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
  %product = transform.structured.match ops{["linalg.generic"]} in %loops : (!transform.any_op) -> !transform.any_op
  schedule.stage_in %product[0] in "spad"
  schedule.stage_in %product[1] in "spad"
  schedule.stage_out %product[2] in "acc"
  schedule.tensorize %product @gemm
  transform.yield
}
