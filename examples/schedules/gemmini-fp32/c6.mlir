// C6 on gemmini-fp32: 7 rows by 16 output channels at a time, the outer loop first.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @conv(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %conv, %bias, %relu = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:3, %loops:2 = schedule.tile %conv fusing(%zero, %bias, %relu)
      sizes [0, 7, 0, 16, 0, 0, 0] interchange [1, 3, 0, 2, 4, 5, 6]
      {slots = {acc = 2 : i64}}
    transform.yield
  }
}
