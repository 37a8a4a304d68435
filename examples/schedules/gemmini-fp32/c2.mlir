// C2 on gemmini-fp32: 8 rows by 28 columns at a time, the outer loop first.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @conv(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %conv, %bias, %relu = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:3, %loops:2 = schedule.tile %conv fusing(%zero, %bias, %relu)
      sizes [0, 8, 28, 0, 0, 0, 0] interchange [1, 2, 0, 3, 4, 5, 6]
      {slots = {}}
    transform.yield
  }
}
