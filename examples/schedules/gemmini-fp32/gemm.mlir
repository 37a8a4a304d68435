// GEMM 1024 on gemmini-fp32: tiles of 64 x 128, sums over 128 at a time.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %product = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %tile, %tiles:1, %loops:3 = schedule.tile %product fusing(%zero)
      sizes [64, 128, 128] interchange [0, 1, 2]
      {slots = {spad = 2 : i64}}
    transform.yield
  }
}
