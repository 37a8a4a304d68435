// GEMM 1024 on rapid-core-like: tiles of 256 x 256, sums over 128 at a time, four slots.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %product = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %tile, %tiles:1, %loops:3 = schedule.tile %product fusing(%zero)
      sizes [256, 256, 128] interchange [0, 1, 2]
      {slots = {spm = 4 : i64}}
    transform.yield
  }
}
