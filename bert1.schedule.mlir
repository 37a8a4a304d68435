builtin.module attributes {transform.with_named_sequence} {
  transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<128x768xf32>, tensor<3x768x768xf32>, tensor<3x1x768xf32>) -> tensor<3x128x768xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @fused_1(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<1x128x12x64xf32>, tensor<1x128x12x64xf32>, tensor<1x128x12x64xf32>, tensor<1x1x1x128xf32>) -> tensor<1x128x12x64xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @fused_2(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<1x1x128x768xf32>, tensor<48x1x768x16xf32>, tensor<48x16xf32>) -> tensor<1x1x128x48x16xf32>} {
    %0 = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %conv, %conv_1, %add = transform.split_handle %0 : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    %conv_tile, %conv_tile_1, %add_tile, %loop_d3, %loop_d2 = schedule.tile %conv_1 fusing(%conv, %add) sizes [0, 0, 6, 1, 0, 0, 0] interchange [3, 2, 0, 1, 4, 5, 6] edges ["whole", "whole", "overlap", "divides", "whole", "whole", "whole"]
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    %conv_2 = transform.structured.match ops{["memref.alloc"]} in %kernel_1 : (!transform.any_op) -> !transform.any_op
    schedule.set_scope %conv_2 "registers"
    transform.yield
  }
  transform.named_sequence @fused_3(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<98304xf32>, tensor<98304xf32>) -> tensor<98304xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @fused_4(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<128x768xf32>) -> tensor<128x1xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @fused_5(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<128x768xf32>, tensor<128x1xf32>) -> tensor<128x768xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @fused_6(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<128x768xf32>) -> tensor<128x1xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @fused_7(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<1x128x1xf32>, tensor<1x1x128x48x16xf32>, tensor<48x16xf32>, tensor<48x16xf32>) -> tensor<1x1x128x48x16xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
  transform.named_sequence @fused_8(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<1x1x128x768xf32>, tensor<192x1x768x16xf32>, tensor<192x16xf32>) -> tensor<1x1x128x192x16xf32>} {
    %0 = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %conv, %conv_1, %mul = transform.split_handle %0 : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    %conv_tile, %conv_tile_1, %mul_tile, %loop_d3, %loop_d2 = schedule.tile %conv_1 fusing(%conv, %mul) sizes [0, 0, 6, 1, 0, 0, 0] interchange [3, 2, 0, 1, 4, 5, 6] edges ["whole", "whole", "overlap", "divides", "whole", "whole", "whole"]
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    %conv_2 = transform.structured.match ops{["memref.alloc"]} in %kernel_1 : (!transform.any_op) -> !transform.any_op
    schedule.set_scope %conv_2 "registers"
    transform.yield
  }
  transform.named_sequence @fused_9(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<1x1x128x3072xf32>, tensor<48x1x3072x16xf32>, tensor<48x16xf32>, tensor<1x1x128x48x16xf32>) -> tensor<1x1x128x48x16xf32>} {
    %0 = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %conv, %conv_1, %add = transform.split_handle %0 : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    %conv_tile, %conv_tile_1, %add_tile, %loop_d3, %loop_d2 = schedule.tile %conv_1 fusing(%conv, %add) sizes [0, 0, 6, 1, 0, 0, 0] interchange [3, 2, 0, 1, 4, 5, 6] edges ["whole", "whole", "overlap", "divides", "whole", "whole", "whole"]
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    %conv_2 = transform.structured.match ops{["memref.alloc"]} in %kernel_1 : (!transform.any_op) -> !transform.any_op
    schedule.set_scope %conv_2 "registers"
    transform.yield
  }
  transform.named_sequence @fused_10(%kernel: !transform.any_op {transform.readonly}) attributes {schedule.kernel = (tensor<128x1xf32>, tensor<128x768xf32>, tensor<768xf32>, tensor<768xf32>) -> tensor<128x768xf32>} {
    %kernel_1 = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
