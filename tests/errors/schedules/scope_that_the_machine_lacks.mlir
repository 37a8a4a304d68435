// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// scope_that_the_machine_lacks.mlir:10:3: error: machine "gemmini-fp32" has no scope "sram"
// note: its scopes: spad, acc
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %loops = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
  %again = transform.structured.match ops{["linalg.generic"]} in %loops : (!transform.any_op) -> !transform.any_op
  %z, %p = transform.split_handle %again : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %copy = schedule.stage_in %p[0] in "sram"
  transform.yield
}
