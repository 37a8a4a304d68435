// C4 on gemmini-fp32: 64 output channels by 14 rows by 4 columns at a time, the outer loop first.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @conv(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %conv, %bias, %relu = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:3, %loops:3 = schedule.tile %conv fusing(%zero, %bias, %relu)
      sizes [0, 14, 4, 64, 0, 0, 0] interchange [3, 1, 2, 0, 4, 5, 6]
      {slots = {acc = 2 : i64}}
    transform.yield
  }
}
