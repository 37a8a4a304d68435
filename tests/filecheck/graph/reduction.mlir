// Reductions.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @reductions(%x: tensor<2x3x4xf32>) {
// CHECK-LABEL: func.func @reductions
  %0 = graph.reduce_sum %x axes [1] : tensor<2x3x4xf32> -> tensor<2x1x4xf32>
  // CHECK-NEXT: %0 = graph.reduce_sum %x axes [1] : tensor<2x3x4xf32> -> tensor<2x1x4xf32>
  %1 = graph.reduce_mean %x axes [0, 2] keepdims false : tensor<2x3x4xf32> -> tensor<3xf32>
  // CHECK-NEXT: %1 = graph.reduce_mean %x axes [0, 2] keepdims false : tensor<2x3x4xf32> -> tensor<3xf32>
  %2 = graph.reduce_max %x axes [0, 1, 2] keepdims false : tensor<2x3x4xf32> -> tensor<f32>
  // CHECK-NEXT: %2 = graph.reduce_max %x axes [0, 1, 2] keepdims false : tensor<2x3x4xf32> -> tensor<f32>
  %3 = graph.reduce_min %x axes [2] : tensor<2x3x4xf32> -> tensor<2x3x1xf32>
  // CHECK-NEXT: %3 = graph.reduce_min %x axes [2] : tensor<2x3x4xf32> -> tensor<2x3x1xf32>
  %4 = graph.reduce_prod %x axes [] : tensor<2x3x4xf32> -> tensor<2x3x4xf32>
  // CHECK-NEXT: %4 = graph.reduce_prod %x axes [] : tensor<2x3x4xf32> -> tensor<2x3x4xf32>
  func.return
}
