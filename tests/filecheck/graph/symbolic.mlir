// Sizes that are not known: `?`, and names for them.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @shapes(%x: tensor<?x?x4xf32> {graph.dims = ["N", "T", ""]}, %w: tensor<4x3xf32>, %i: tensor<1x4xf32>) {
// CHECK-LABEL: func.func @shapes(%x: tensor<?x?x4xf32> {graph.dims = ["N", "T", ""]}
  %0 = graph.reshape %x : tensor<?x?x4xf32> -> tensor<?x4xf32>
  // CHECK-NEXT: %0 = graph.reshape %x : tensor<?x?x4xf32> -> tensor<?x4xf32>
  %1 = graph.reshape %x dims ["N", "", "", ""] : tensor<?x?x4xf32> -> tensor<?x?x2x2xf32>
  // CHECK-NEXT: %1 = graph.reshape %x dims ["N", "", "", ""] : tensor<?x?x4xf32> -> tensor<?x?x2x2xf32>
  %2 = graph.expand %i dims ["N", ""] : tensor<1x4xf32> -> tensor<?x4xf32>
  // CHECK-NEXT: %2 = graph.expand %i dims ["N", ""] : tensor<1x4xf32> -> tensor<?x4xf32>
  %3 = graph.expand %x : tensor<?x?x4xf32> -> tensor<2x?x?x4xf32>
  // CHECK-NEXT: %3 = graph.expand %x : tensor<?x?x4xf32> -> tensor<2x?x?x4xf32>
  %4 = graph.slice %x starts [0, 1, 0] sizes [-1, -1, 2] steps [1, 2, 1] : tensor<?x?x4xf32> -> tensor<?x?x2xf32>
  // CHECK-NEXT: %4 = graph.slice %x starts [0, 1, 0] sizes [-1, -1, 2] steps [1, 2, 1] : tensor<?x?x4xf32> -> tensor<?x?x2xf32>
  %5 = graph.concat %x, %x axis 2 : (tensor<?x?x4xf32>, tensor<?x?x4xf32>) -> tensor<?x?x8xf32>
  // CHECK-NEXT: %5 = graph.concat %x, %x axis 2 : (tensor<?x?x4xf32>, tensor<?x?x4xf32>) -> tensor<?x?x8xf32>
  %6 = graph.matmul %x, %w : (tensor<?x?x4xf32>, tensor<4x3xf32>) -> tensor<?x?x3xf32>
  // CHECK-NEXT: %6 = graph.matmul %x, %w : (tensor<?x?x4xf32>, tensor<4x3xf32>) -> tensor<?x?x3xf32>
  %7 = graph.add %0, %i : (tensor<?x4xf32>, tensor<1x4xf32>) -> tensor<?x4xf32>
  // CHECK-NEXT: %7 = graph.add %0, %i : (tensor<?x4xf32>, tensor<1x4xf32>) -> tensor<?x4xf32>
  func.return
}
