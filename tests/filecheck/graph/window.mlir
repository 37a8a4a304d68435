// Convolution and pooling.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @conv(%x: tensor<1x4x9x8xf32>, %w: tensor<6x2x3x3xf32>, %b: tensor<6xf32>,
                %y: tensor<1x9x8x4xf32>, %v: tensor<3x3x4x6xf32>, %l: tensor<2x3x10xf32>, %k: tensor<5x3x4xf32>) {
                // CHECK-LABEL: func.func @conv
  %0 = graph.conv %x, %w, %b strides [2, 1] pads [1, 0, 1, 2] dilations [1, 2] group 2 : (tensor<1x4x9x8xf32>, tensor<6x2x3x3xf32>, tensor<6xf32>) -> tensor<1x6x5x6xf32>
  // CHECK-NEXT: %0 = graph.conv %x, %w, %b strides [2, 1] pads [1, 0, 1, 2] dilations [1, 2] group 2 : (tensor<1x4x9x8xf32>, tensor<6x2x3x3xf32>, tensor<6xf32>) -> tensor<1x6x5x6xf32>
  %1 = graph.conv %y, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC" : (tensor<1x9x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<1x9x8x6xf32>
  // CHECK-NEXT: %1 = graph.conv %y, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC" : (tensor<1x9x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<1x9x8x6xf32>
  %2 = graph.conv %l, %k strides [1] pads [0, 0] dilations [1] : (tensor<2x3x10xf32>, tensor<5x3x4xf32>) -> tensor<2x5x7xf32>
  // CHECK-NEXT: %2 = graph.conv %l, %k strides [1] pads [0, 0] dilations [1] : (tensor<2x3x10xf32>, tensor<5x3x4xf32>) -> tensor<2x5x7xf32>
  func.return
}

func.func @pool(%x: tensor<1x4x9x8xf32>, %y: tensor<1x9x8x4xf32>) {
// CHECK-LABEL: func.func @pool
  %0 = graph.max_pool %x kernel_shape [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] : tensor<1x4x9x8xf32> -> tensor<1x4x4x3xf32>
  // CHECK-NEXT: %0 = graph.max_pool %x kernel_shape [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] : tensor<1x4x9x8xf32> -> tensor<1x4x4x3xf32>
  // A window that hangs over the end counts, but not one that begins beyond it.
  %1 = graph.max_pool %x kernel_shape [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_mode true : tensor<1x4x9x8xf32> -> tensor<1x4x4x4xf32>
  // CHECK-NEXT: %1 = graph.max_pool %x kernel_shape [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_mode true : tensor<1x4x9x8xf32> -> tensor<1x4x4x4xf32>
  %2 = graph.average_pool %y kernel_shape [2, 2] strides [1, 1] pads [1, 1, 0, 0] dilations [1, 1] count_include_pad true layout "NHWC" : tensor<1x9x8x4xf32> -> tensor<1x9x8x4xf32>
  // CHECK-NEXT: %2 = graph.average_pool %y kernel_shape [2, 2] strides [1, 1] pads [1, 1, 0, 0] dilations [1, 1] count_include_pad true layout "NHWC" : tensor<1x9x8x4xf32> -> tensor<1x9x8x4xf32>
  %3 = graph.global_average_pool %x : tensor<1x4x9x8xf32> -> tensor<1x4x1x1xf32>
  // CHECK-NEXT: %3 = graph.global_average_pool %x : tensor<1x4x9x8xf32> -> tensor<1x4x1x1xf32>
  %4 = graph.global_max_pool %y layout "NHWC" : tensor<1x9x8x4xf32> -> tensor<1x1x1x4xf32>
  // CHECK-NEXT: %4 = graph.global_max_pool %y layout "NHWC" : tensor<1x9x8x4xf32> -> tensor<1x1x1x4xf32>
  func.return
}
