// Groups of operators.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @group(%x: tensor<2x4xf32>, %w: tensor<4x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
// CHECK-LABEL: func.func @group
  %0, %1 = graph.fused(%x, %w) pattern complex_out_fusable attributes {note = "kept"} {
  // CHECK-NEXT: %0, %1 = graph.fused(%x, %w) pattern complex_out_fusable attributes {note = "kept"} {
  ^bb0(%a: tensor<2x4xf32>, %b: tensor<4x3xf32>):
  // CHECK-NEXT: ^bb0(%a: tensor<2x4xf32>, %b: tensor<4x3xf32>):
    %c = graph.matmul %a, %b : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %c = graph.matmul %a, %b : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %d = graph.relu %c : tensor<2x3xf32>
    // CHECK-NEXT: %d = graph.relu %c : tensor<2x3xf32>
    graph.yield %c, %d : tensor<2x3xf32>, tensor<2x3xf32>
    // CHECK-NEXT: graph.yield %c, %d : tensor<2x3xf32>, tensor<2x3xf32>
  } : (tensor<2x4xf32>, tensor<4x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
  // CHECK-NEXT: } : (tensor<2x4xf32>, tensor<4x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
  func.return %0, %1 : tensor<2x3xf32>, tensor<2x3xf32>
}

func.func @without_operands() -> tensor<f32> {
// CHECK-LABEL: func.func @without_operands
  %0 = graph.fused() pattern opaque {
  // CHECK-NEXT: %0 = graph.fused() pattern opaque {
    %c = graph.constant dense<1.0> : tensor<f32>
    // CHECK-NEXT: %c = graph.constant dense<1.000000e+00> : tensor<f32>
    graph.yield %c : tensor<f32>
    // CHECK-NEXT: graph.yield %c : tensor<f32>
  } : () -> tensor<f32>
  // CHECK-NEXT: } : () -> tensor<f32>
  func.return %0 : tensor<f32>
}

func.func @branches(%c: tensor<1xi1>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
// CHECK-LABEL: func.func @branches
  %0, %1 = graph.if %c(%x) attributes {note = "kept"} {
  // CHECK-NEXT: %0, %1 = graph.if %c(%x) attributes {note = "kept"} {
  ^bb0(%a: tensor<4xf32>):
  // CHECK-NEXT: ^bb0(%a: tensor<4xf32>):
    %b = graph.exp %a : tensor<4xf32>
    // CHECK-NEXT: %b = graph.exp %a : tensor<4xf32>
    graph.yield %a, %b : tensor<4xf32>, tensor<4xf32>
    // CHECK-NEXT: graph.yield %a, %b : tensor<4xf32>, tensor<4xf32>
  } else {
  // CHECK-NEXT: } else {
  ^bb0(%a: tensor<4xf32>):
  // CHECK-NEXT: ^bb0(%a_1: tensor<4xf32>):
    graph.yield %a, %a : tensor<4xf32>, tensor<4xf32>
    // CHECK-NEXT: graph.yield %a_1, %a_1 : tensor<4xf32>, tensor<4xf32>
  } : tensor<1xi1>, (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  // CHECK-NEXT: } : tensor<1xi1>, (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
