// Operators that move elements.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @moves(%x: tensor<2x3x4xf32>, %y: tensor<2x5x4xf32>, %i: tensor<3xi8>) {
// CHECK-LABEL: func.func @moves
  %0 = graph.reshape %x : tensor<2x3x4xf32> -> tensor<6x4xf32>
  // CHECK-NEXT: %0 = graph.reshape %x : tensor<2x3x4xf32> -> tensor<6x4xf32>
  %1 = graph.expand %i : tensor<3xi8> -> tensor<2x3xi8>
  // CHECK-NEXT: %1 = graph.expand %i : tensor<3xi8> -> tensor<2x3xi8>
  %2 = graph.transpose %x perm [2, 0, 1] : tensor<2x3x4xf32> -> tensor<4x2x3xf32>
  // CHECK-NEXT: %2 = graph.transpose %x perm [2, 0, 1] : tensor<2x3x4xf32> -> tensor<4x2x3xf32>
  %3 = graph.concat %x, %y axis 1 : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x8x4xf32>
  // CHECK-NEXT: %3 = graph.concat %x, %y axis 1 : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x8x4xf32>
  %4 = graph.pad %x pads [0, 1, 0, 2, 0, 0] : tensor<2x3x4xf32> -> tensor<4x4x4xf32>
  // CHECK-NEXT: %4 = graph.pad %x pads [0, 1, 0, 2, 0, 0] : tensor<2x3x4xf32> -> tensor<4x4x4xf32>
  %5 = graph.pad %x pads [0, 1, 0, 0, 1, 0] value -inf : tensor<2x3x4xf32> -> tensor<2x5x4xf32>
  // CHECK-NEXT: %5 = graph.pad %x pads [0, 1, 0, 0, 1, 0] value -inf : tensor<2x3x4xf32> -> tensor<2x5x4xf32>
  %6 = graph.pad %i pads [1, 1] value -128.0 : tensor<3xi8> -> tensor<5xi8>
  // CHECK-NEXT: %6 = graph.pad %i pads [1, 1] value -128.0 : tensor<3xi8> -> tensor<5xi8>
  %7 = graph.slice %x starts [1, 0, 3] sizes [1, 2, 4] steps [1, 2, -1] : tensor<2x3x4xf32> -> tensor<1x2x4xf32>
  // CHECK-NEXT: %7 = graph.slice %x starts [1, 0, 3] sizes [1, 2, 4] steps [1, 2, -1] : tensor<2x3x4xf32> -> tensor<1x2x4xf32>
  func.return
}
