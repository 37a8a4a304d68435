// C11 on vta-pynq: 1 block of input channels at a time, the outer loop first.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @conv(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %conv, %bias, %shift, %max, %min, %narrow = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:6, %loops = schedule.tile %conv fusing(%zero, %bias, %shift, %max, %min, %narrow)
      sizes [0, 0, 0, 0, 0, 1, 0, 0, 0] interchange [5, 0, 1, 2, 3, 4, 6, 7, 8]
      {slots = {inp = 2 : i64, wgt = 2 : i64}}
    transform.yield
  }
}
