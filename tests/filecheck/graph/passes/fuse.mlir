// RUN: penstock-opt %s -p graph-fuse | filecheck %s
// RUN: penstock-opt %s -p graph-fuse | penstock-opt -p graph-fuse | filecheck %s

// The epilogue goes into the group of its convolution; the pool, which has another shape, stands alone.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<1x3x8x8xf32>, %s: tensor<1x4x6x6xf32>) -> (tensor<1x4x3x3xf32>, tensor<1x36xf32>) {
  // CHECK: %[[W:.*]] = graph.constant #graph.weight<"w">
  %w = graph.constant #graph.weight<"w"> : tensor<4x3x3x3xf32>
  // CHECK: %[[SHARED:.*]] = graph.constant dense<6.000000e+00> : tensor<1x1xf32>
  %shared = graph.constant dense<6.0> : tensor<1x1xf32>
  %c = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
  // CHECK:      %[[M:.*]] = graph.fused(%{{.*}}, %[[W]], %{{.*}}) pattern complex_out_fusable {
  // CHECK-NEXT: ^bb0(%[[A0:.*]]: tensor<1x3x8x8xf32>, %[[A1:.*]]: tensor<4x3x3x3xf32>, %[[A2:.*]]: tensor<1x4x6x6xf32>):
  // CHECK-NEXT:   %[[C:.*]] = graph.conv %[[A0]], %[[A1]]
  // CHECK-NEXT:   %[[ADD:.*]] = graph.add %[[C]], %[[A2]]
  // CHECK-NEXT:   %[[SIX:.*]] = graph.constant dense<6.000000e+00>
  // CHECK-NEXT:   %[[MIN:.*]] = graph.min %[[ADD]], %[[SIX]]
  // CHECK-NEXT:   graph.yield %[[MIN]]
  %a = graph.add %c, %s : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %m = graph.min %a, %shared : (tensor<1x4x6x6xf32>, tensor<1x1xf32>) -> tensor<1x4x6x6xf32>
  // CHECK:      graph.fused(%[[M]]) pattern complex_out_fusable
  // CHECK:        graph.max_pool
  // CHECK-NEXT:   graph.yield
  %p = graph.max_pool %m kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] : tensor<1x4x6x6xf32> -> tensor<1x4x3x3xf32>
  // Views and concatenations are not work.
  // CHECK: %[[V:.*]] = graph.reshape %{{.*}} : tensor<1x4x3x3xf32> -> tensor<1x36xf32>
  %v = graph.reshape %p : tensor<1x4x3x3xf32> -> tensor<1x36xf32>
  // CHECK: graph.concat %[[SHARED]]
  %k = graph.concat %shared, %shared axis 0 : (tensor<1x1xf32>, tensor<1x1xf32>) -> tensor<2x1xf32>
  %e = graph.mul %v, %k : (tensor<1x36xf32>, tensor<2x1xf32>) -> tensor<2x36xf32>
  %r = graph.reduce_max %e axes [0] : tensor<2x36xf32> -> tensor<1x36xf32>
  // A reduction takes no epilogue.
  // CHECK:      graph.fused(%{{.*}}) pattern reduction
  // CHECK:        graph.reduce_max
  // CHECK-NEXT:   graph.yield
  // CHECK:      graph.fused(%{{.*}}) pattern elementwise
  // CHECK:        graph.abs
  %f = graph.abs %r : tensor<1x36xf32>
  func.return %p, %f : tensor<1x4x3x3xf32>, tensor<1x36xf32>
}
