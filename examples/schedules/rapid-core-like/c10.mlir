// C10 on rapid-core-like: 8 input channels at a time, the outer loop first.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @conv(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %conv, %bias, %relu, %narrow = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:4, %loops = schedule.tile %conv fusing(%zero, %bias, %relu, %narrow)
      sizes [0, 0, 0, 0, 0, 0, 8] interchange [6, 0, 1, 2, 3, 4, 5]
      {slots = {spm = 3 : i64}}
    transform.yield
  }
}
