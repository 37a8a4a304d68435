// What is wrong with a branch.
// RUN: penstock-opt %s --split-input-file --verify-diagnostics

func.func @condition(%c: tensor<2xi1>, %x: tensor<4xf32>) {
  // expected-error @+1 {{the condition of graph.if must be one i1, found tensor<2xi1>}}
  %0 = graph.if %c(%x) {
  ^bb0(%a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } else {
  ^bb0(%a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } : tensor<2xi1>, (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @arguments(%c: tensor<i1>, %x: tensor<4xf32>) {
  // expected-error @+1 {{graph.if has (tensor<4xf32>) as inputs and () as arguments of its else branch}}
  %0 = graph.if %c(%x) {
  ^bb0(%a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } else {
    %b = graph.constant dense<0.0> : tensor<4xf32>
    graph.yield %b : tensor<4xf32>
  } : tensor<i1>, (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @results(%c: tensor<i1>, %x: tensor<4xf32>) {
  // expected-error @+1 {{graph.if yields (tensor<f32>) in its else branch and has (tensor<4xf32>) as results}}
  %0 = graph.if %c(%x) {
  ^bb0(%a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } else {
  ^bb0(%a: tensor<4xf32>):
    %b = graph.constant dense<0.0> : tensor<f32>
    graph.yield %b : tensor<f32>
  } : tensor<i1>, (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @captured(%c: tensor<i1>, %x: tensor<4xf32>) {
  // expected-error @+1 {{Operation using value defined out of its IsolatedFromAbove parent}}
  %0 = graph.if %c() {
    %b = graph.constant dense<0.0> : tensor<4xf32>
    graph.yield %b : tensor<4xf32>
  } else {
    %b = graph.exp %x : tensor<4xf32>
    graph.yield %b : tensor<4xf32>
  } : tensor<i1>, () -> tensor<4xf32>
  func.return
}
