// C11 on gemmini-fp32: 128 output channels by 64 input channels at a time, the outer loop first.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @conv(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %conv, %bias, %relu = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:3, %loops:2 = schedule.tile %conv fusing(%zero, %bias, %relu)
      sizes [0, 0, 0, 128, 0, 0, 64] interchange [3, 6, 0, 1, 2, 4, 5]
      {slots = {acc = 2 : i64, spad = 2 : i64}}
    transform.yield
  }
}
