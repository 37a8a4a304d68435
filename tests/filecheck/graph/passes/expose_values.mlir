// RUN: penstock-opt %s -p 'expose-values{of="ops"}' | filecheck %s --check-prefix OPS
// RUN: penstock-opt %s -p 'graph-fuse,expose-values' | filecheck %s --check-prefix GROUPS
// RUN: penstock-opt %s -p 'graph-fuse,expose-values,expose-values' | filecheck %s --check-prefix GROUPS

// OPS: -> (tensor<2x3xf32> {graph.name = "y"}, tensor<2x3xf32> {graph.name = "exp_1"}, tensor<2x3xf32> {graph.name = "relu_1"}) {
// OPS: func.return %{{.*}}, %{{.*}}, %{{.*}} : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
// GROUPS: -> (tensor<2x3xf32> {graph.name = "y"}, tensor<2x3xf32> {graph.name = "relu_1"}) {
// GROUPS: func.return %[[R:.*]], %[[R]] :
func.func @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32> {graph.name = "y"}) {
  %a = graph.exp %x : tensor<2x3xf32> loc("exp_1")
  %b = graph.relu %a : tensor<2x3xf32> loc("relu_1")
  func.return %b : tensor<2x3xf32>
}
