// RUN: penstock-opt %s -p layout | filecheck %s
// RUN: penstock-opt %s -p 'layout{layout="NHWC"}' | penstock-opt -p layout | filecheck %s

// CHECK-LABEL: func.func @main(%x: tensor<1x4x8x8xf32>) -> tensor<1x4x6x6xf32>
func.func @main(%x: tensor<1x4x8x8xf32>) -> tensor<1x4x6x6xf32> {
  // CHECK: %[[X:.*]] = graph.layout_transform %x from "NCHW" to "NHWC"
  // CHECK: %[[W:.*]] = graph.layout_transform %{{.*}} from "OIHW" to "HWIO" : tensor<4x2x3x3xf32> -> tensor<3x3x2x4xf32>
  // CHECK: graph.conv %[[X]], %[[W]] strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] group 2 layout "NHWC"
  %w = graph.constant #graph.weight<"w"> : tensor<4x2x3x3xf32>
  %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] group 2 : (tensor<1x4x8x8xf32>, tensor<4x2x3x3xf32>) -> tensor<1x4x6x6xf32>
  // CHECK: graph.batch_normalization {{.*}} axis 3 {graph.layout = "NHWC"}
  %v = graph.constant #graph.weight<"v"> : tensor<4xf32>
  %n = graph.batch_normalization %c, %v, %v, %v, %v : (tensor<1x4x6x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
  // The constant of shape 4x1x1 becomes one of shape 4, which broadcasts along the innermost dimension.
  // CHECK: graph.mul {{.*}} : (tensor<1x6x6x4xf32>, tensor<4xf32>) -> tensor<1x6x6x4xf32>
  %u = graph.constant #graph.weight<"u"> : tensor<4x1x1xf32>
  %m = graph.mul %n, %u : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  // CHECK: graph.concat {{.*}} axis 3 {graph.layout = "NHWC"}
  %k = graph.concat %m, %m axis 1 : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x8x6x6xf32>
  // CHECK: graph.slice {{.*}} starts [0, 0, 0, 2] sizes [1, 6, 6, 4]
  %s = graph.slice %k starts [0, 2, 0, 0] sizes [1, 4, 6, 6] steps [1, 1, 1, 1] : tensor<1x8x6x6xf32> -> tensor<1x4x6x6xf32>
  // CHECK: %[[Y:.*]] = graph.layout_transform %{{.*}} from "NHWC" to "NCHW" : tensor<1x6x6x4xf32> -> tensor<1x4x6x6xf32>
  // CHECK: func.return %[[Y]]
  func.return %s : tensor<1x4x6x6xf32>
}
