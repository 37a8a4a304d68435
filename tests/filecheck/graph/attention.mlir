// Attention: its operands as they are, and in other orders.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @attentions(%q: tensor<2x5x8xf32>, %k: tensor<2x7x8xf32>, %v: tensor<2x7x3xf32>, %m: tensor<5x1xf32>, %h: tensor<2x8x7xf16>) {
// CHECK-LABEL: func.func @attentions
  %0 = graph.attention %q, %k, %v : (tensor<2x5x8xf32>, tensor<2x7x8xf32>, tensor<2x7x3xf32>) -> tensor<2x5x3xf32>
  // CHECK-NEXT: %0 = graph.attention %q, %k, %v : (tensor<2x5x8xf32>, tensor<2x7x8xf32>, tensor<2x7x3xf32>) -> tensor<2x5x3xf32>
  %1 = graph.attention %q, %k, %v, %m scale 0.125 result_perm [2, 0, 1] zero_masked true blocks [4, 2] : (tensor<2x5x8xf32>, tensor<2x7x8xf32>, tensor<2x7x3xf32>, tensor<5x1xf32>) -> tensor<3x2x5xf32>
  // CHECK-NEXT: %1 = graph.attention %q, %k, %v, %m scale 0.125 result_perm [2, 0, 1] zero_masked true blocks [4, 2] : (tensor<2x5x8xf32>, tensor<2x7x8xf32>, tensor<2x7x3xf32>, tensor<5x1xf32>) -> tensor<3x2x5xf32>
  %2 = graph.attention %h, %h, %h q_perm [0, 2, 1] k_perm [0, 2, 1] v_perm [0, 2, 1] accumulate f32 : (tensor<2x8x7xf16>, tensor<2x8x7xf16>, tensor<2x8x7xf16>) -> tensor<2x7x8xf16>
  // CHECK-NEXT: %2 = graph.attention %h, %h, %h q_perm [0, 2, 1] k_perm [0, 2, 1] v_perm [0, 2, 1] accumulate f32 : (tensor<2x8x7xf16>, tensor<2x8x7xf16>, tensor<2x8x7xf16>) -> tensor<2x7x8xf16>
  func.return
}
