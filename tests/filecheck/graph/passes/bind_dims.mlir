// RUN: penstock-opt %s -p 'bind-dims{names="N","x.1" sizes=2,3}' | filecheck %s
// RUN: penstock-opt %s -p 'bind-dims{names="N" sizes=2}' | filecheck %s --check-prefix ONE
// RUN: penstock-opt %s -p 'bind-dims{names="N" sizes=2},bind-dims{names="x.1" sizes=3}' | filecheck %s

// CHECK-LABEL: func.func @main(%x: tensor<2x3x4xf32> {graph.name = "x"}) -> tensor<2x2x1x4xf32> {
// ONE-LABEL: func.func @main(%x: tensor<2x?x4xf32> {graph.name = "x", graph.dims = ["", "x.1", ""]}) -> tensor<2x2x?x4xf32> {
func.func @main(%x: tensor<?x?x4xf32> {graph.name = "x", graph.dims = ["N", "", ""]}) -> tensor<?x2x?x4xf32> {
  // A reshape that becomes the identity goes.
  %0 = graph.reshape %x dims ["N", "", ""] : tensor<?x?x4xf32> -> tensor<?x?x4xf32>
  %i = graph.constant dense<1.0> : tensor<1x1x4xf32>
  %1 = graph.expand %i dims ["N", "", ""] : tensor<1x1x4xf32> -> tensor<?x1x4xf32>
  // CHECK: graph.expand %i : tensor<1x1x4xf32> -> tensor<2x1x4xf32>
  %2 = graph.fused(%0, %1) pattern broadcast {
  // CHECK: graph.fused(%x, %0)
  // ONE: graph.fused(%x, %0)
  ^bb0(%a: tensor<?x?x4xf32>, %b: tensor<?x1x4xf32>):
    %c = graph.add %a, %b : (tensor<?x?x4xf32>, tensor<?x1x4xf32>) -> tensor<?x?x4xf32>
    // CHECK: graph.add %a, %b : (tensor<2x3x4xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
    // ONE: graph.add %a, %b : (tensor<2x?x4xf32>, tensor<2x1x4xf32>) -> tensor<2x?x4xf32>
    graph.yield %c : tensor<?x?x4xf32>
  } : (tensor<?x?x4xf32>, tensor<?x1x4xf32>) -> tensor<?x?x4xf32>
  // CHECK: } : (tensor<2x3x4xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  %3 = graph.slice %2 starts [0, 1, 0] sizes [-1, -1, 4] steps [1, 2, 1] : tensor<?x?x4xf32> -> tensor<?x?x4xf32>
  // CHECK: graph.slice %1 starts [0, 1, 0] sizes [2, 1, 4] steps [1, 2, 1] : tensor<2x3x4xf32> -> tensor<2x1x4xf32>
  // ONE: graph.slice %1 starts [0, 1, 0] sizes [2, -1, 4] steps [1, 2, 1] : tensor<2x?x4xf32> -> tensor<2x?x4xf32>
  %4 = graph.expand %3 : tensor<?x?x4xf32> -> tensor<2x?x?x4xf32>
  %5 = graph.transpose %4 perm [1, 0, 2, 3] : tensor<2x?x?x4xf32> -> tensor<?x2x?x4xf32>
  func.return %5 : tensor<?x2x?x4xf32>
}
