// $ penstock compile programs/product.mlir --machine gemmini-fp32 --schedule %s
// knob_without_selected.mlir:7:3: error: knob "rows" has no value
// note: select one: --knob fused_0.rows=VALUE, or transform.tune.knob<"rows"> = VALUE from options ...
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
  %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
  %zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %rows = transform.tune.knob<"rows"> options = [16, 32] -> !transform.any_param
  %tile, %zeros, %loop = schedule.tile %product fusing(%zero) sizes [%rows, 0, 0]
  transform.yield
}
