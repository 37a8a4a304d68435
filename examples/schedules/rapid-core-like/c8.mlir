// C8 on rapid-core-like: 1 row at a time, the outer loop first.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @conv(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %conv, %bias, %relu, %narrow = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:4, %loops = schedule.tile %conv fusing(%zero, %bias, %relu, %narrow)
      sizes [0, 1, 0, 0, 0, 0, 0] interchange [1, 0, 2, 3, 4, 5, 6]
      {slots = {spm = 4 : i64}}
    transform.yield
  }
}
