// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// match_finds_nothing.mlir:7:3: error: the match finds nothing: there is no linalg.matmul here
// note: there are arith.addf, arith.constant, arith.mulf, func.return, linalg.generic, linalg.yield, tensor.empty
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %sum = transform.structured.match ops{["linalg.matmul"]} in %kernel : (!transform.any_op) -> !transform.any_op
  transform.yield
}
