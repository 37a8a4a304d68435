builtin.module attributes {transform.with_named_sequence} {
  transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<1x1x1024x1024xf32>, tensor<64x1x1024x16xf32>) -> tensor<1x1x1024x64x16xf32>} {
    %0 = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %conv, %conv_1 = transform.split_handle %0 : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %conv_tile, %conv_tile_1, %loop_d3, %loop_d2 = schedule.tile %conv_1 fusing(%conv) sizes [0, 0, 6, 1, 0, 0, 0] interchange [3, 2, 0, 1, 4, 5, 6] edges ["whole", "whole", "overlap", "divides", "whole", "whole", "whole"]
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
