// Small networks at graph level, whose lower levels mlir-opt 19 reads.
// -----
// convolution and poolings
func.func @main(%x: tensor<1x4x9x9xf32>, %w: tensor<8x4x3x3xf32>) -> (tensor<1x8x4x4xf32> {graph.name = "y"}, tensor<1x4x9x9xf32> {graph.name = "z"}) {
  %b = graph.constant dense<[[[0.1]], [[1234567.0]], [[0xFF800000]], [[-0.0]], [[1.0]], [[2.0]], [[3.0]], [[4.0]]]> : tensor<8x1x1xf32>
  %0 = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] : (tensor<1x4x9x9xf32>, tensor<8x4x3x3xf32>) -> tensor<1x8x9x9xf32>
  %1 = graph.add %0, %b : (tensor<1x8x9x9xf32>, tensor<8x1x1xf32>) -> tensor<1x8x9x9xf32>
  %2 = graph.max_pool %1 kernel_shape [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] : tensor<1x8x9x9xf32> -> tensor<1x8x4x4xf32>
  %3 = graph.average_pool %x kernel_shape [2, 2] strides [1, 1] pads [1, 1, 0, 0] dilations [1, 1] : tensor<1x4x9x9xf32> -> tensor<1x4x9x9xf32>
  func.return %2, %3 : tensor<1x8x4x4xf32>, tensor<1x4x9x9xf32>
}
// -----
// a concatenation, a transposition and a matmul
func.func @main(%x: tensor<2x16x16xf32>, %m: tensor<16x12xf32>) -> (tensor<2x24x16xf32> {graph.name = "y"}, tensor<2x16x12xf32> {graph.name = "z"}) {
  %0 = graph.softmax %x axis 2 : tensor<2x16x16xf32> -> tensor<2x16x16xf32>
  %1 = graph.slice %0 starts [0, 4, 0] sizes [2, 8, 16] steps [1, 1, 1] : tensor<2x16x16xf32> -> tensor<2x8x16xf32>
  %2 = graph.concat %0, %1 axis 1 : (tensor<2x16x16xf32>, tensor<2x8x16xf32>) -> tensor<2x24x16xf32>
  %3 = graph.transpose %x perm [0, 2, 1] : tensor<2x16x16xf32> -> tensor<2x16x16xf32>
  %4 = graph.matmul %3, %m : (tensor<2x16x16xf32>, tensor<16x12xf32>) -> tensor<2x16x12xf32>
  func.return %2, %4 : tensor<2x24x16xf32>, tensor<2x16x12xf32>
}
