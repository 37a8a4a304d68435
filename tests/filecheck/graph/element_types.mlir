// Narrow element types, and the bits of one type read as another.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @narrow(%x: tensor<2x3xf32>, %i: tensor<4xui4>) {
// CHECK-LABEL: func.func @narrow(%x: tensor<2x3xf32>, %i: tensor<4xui4>)
  %0 = graph.cast %x : tensor<2x3xf32> -> tensor<2x3xf8E4M3FNUZ>
  // CHECK-NEXT: %0 = graph.cast %x : tensor<2x3xf32> -> tensor<2x3xf8E4M3FNUZ>
  %1 = graph.cast %x : tensor<2x3xf32> -> tensor<2x3xf4E2M1FN>
  // CHECK-NEXT: %1 = graph.cast %x : tensor<2x3xf32> -> tensor<2x3xf4E2M1FN>
  %2 = graph.cast %i : tensor<4xui4> -> tensor<4xi2>
  // CHECK-NEXT: %2 = graph.cast %i : tensor<4xui4> -> tensor<4xi2>
  %3 = graph.constant dense<[-8, 7, 0]> : tensor<3xi4>
  // CHECK-NEXT: %3 = graph.constant dense<[-8, 7, 0]> : tensor<3xi4>
  func.return
}

func.func @bits(%x: tensor<3xf32>, %b: tensor<3xi1>) {
// CHECK-LABEL: func.func @bits(%x: tensor<3xf32>, %b: tensor<3xi1>)
  %0 = graph.bitcast %x : tensor<3xf32> -> tensor<3xi32>
  // CHECK-NEXT: %0 = graph.bitcast %x : tensor<3xf32> -> tensor<3xi32>
  %1 = graph.bitcast %b : tensor<3xi1> -> tensor<3xf8E8M0FNU>
  // CHECK-NEXT: %1 = graph.bitcast %b : tensor<3xi1> -> tensor<3xf8E8M0FNU>
  func.return
}
