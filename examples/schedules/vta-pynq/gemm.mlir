// GEMM 1024 on vta-pynq: 4 rows of blocks by 8 columns of blocks at a time; a column stays while rows pass.
module attributes {transform.with_named_sequence} {
  transform.named_sequence @fused_1(%kernel: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %zero, %product, %shift, %max, %min, %narrow = transform.split_handle %ops
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
    %tile, %tiles:5, %loops:2 = schedule.tile %product fusing(%zero, %shift, %max, %min, %narrow)
      sizes [0, 0, 4, 8, 0, 0, 0, 0, 0] interchange [3, 2, 0, 1, 4, 5, 6, 7, 8]
      {slots = {acc = 2 : i64, inp = 2 : i64, wgt = 2 : i64}}
    transform.yield
  }
}
