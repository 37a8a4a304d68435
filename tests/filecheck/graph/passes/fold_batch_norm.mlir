// RUN: penstock-opt %s -p fold-batch-norm | filecheck %s

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<2x3x8xf32>, %run: tensor<4xf32>) -> (tensor<2x4x6xf32>, tensor<2x4x6xf32>) {
  %w = graph.constant dense<2.000000e+00> : tensor<4x3x3xf32>
  %v = graph.constant dense<3.000000e+00> : tensor<4xf32>
  // A line is an image with one spatial dimension.
  // CHECK: %[[E:.*]] = graph.constant dense<5.000000e-01> : tensor<f32>
  // CHECK: graph.add %{{.*}}, %[[E]]
  // CHECK: graph.reshape %{{.*}} : tensor<4xf32> -> tensor<4x1x1xf32>
  // CHECK: graph.mul %{{.*}} : (tensor<4x3x3xf32>, tensor<4x1x1xf32>) -> tensor<4x3x3xf32>
  // CHECK: %[[C:.*]] = graph.conv %x, %filters, %shift
  %c = graph.conv %x, %w strides [1] pads [0, 0] dilations [1] : (tensor<2x3x8xf32>, tensor<4x3x3xf32>) -> tensor<2x4x6xf32>
  %n = graph.batch_normalization %c, %v, %v, %v, %v epsilon 0.5 : (tensor<2x4x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x6xf32>
  // A parameter that is computed keeps the op.
  // CHECK: %[[N:.*]] = graph.batch_normalization %[[C]], %run
  %m = graph.batch_normalization %n, %run, %v, %v, %v : (tensor<2x4x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x6xf32>
  // CHECK: func.return %[[C]], %[[N]]
  func.return %n, %m : tensor<2x4x6xf32>, tensor<2x4x6xf32>
}
