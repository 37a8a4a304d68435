// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

// One program, four levels: this is relu(x w + b) as a graph.

func.func @main(%x: tensor<64x128xf32> {graph.name = "x"}) -> (tensor<64x64xf32> {graph.name = "y"}) {
  // CHECK: %w = graph.constant #graph.weight<"fc.weight"> : tensor<128x64xf32>
  %w = graph.constant #graph.weight<"fc.weight"> : tensor<128x64xf32>
  %b = graph.constant #graph.weight<"fc.bias"> : tensor<64xf32>
  // CHECK: %y = graph.fused(%x, %w, %b)
  // CHECK-SAME: pattern complex_out_fusable
  %y = graph.fused(%x, %w, %b) pattern complex_out_fusable {
  ^bb0(%a: tensor<64x128xf32>, %k: tensor<128x64xf32>, %c: tensor<64xf32>):
    // CHECK: graph.matmul
    %p = graph.matmul %a, %k : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32>
    // CHECK-NEXT: graph.add
    %s = graph.add %p, %c : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
    // CHECK-NEXT: graph.relu
    %r = graph.relu %s : tensor<64x64xf32>
    graph.yield %r : tensor<64x64xf32>
  } : (tensor<64x128xf32>, tensor<128x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
