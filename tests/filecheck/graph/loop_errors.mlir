// What is wrong with a loop.
// RUN: penstock-opt %s --split-input-file --verify-diagnostics

func.func @endless(%x: tensor<4xf32>) {
  // expected-error @+1 {{graph.loop has no number of iterations, and no condition}}
  %0 = graph.loop carry(%x : tensor<4xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } -> tensor<4xf32>
  func.return
}

// -----

func.func @unbounded(%n: tensor<i64>, %x: tensor<4xf32>) {
  // expected-error @+1 {{graph.loop gives lines, and their number has no bound: it needs trips}}
  %0 = graph.loop count(%n : tensor<i64>) reads(%x : tensor<4xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } -> tensor<3x4xf32>
  func.return
}

// -----

func.func @lines(%x: tensor<4xf32>) {
  // expected-error @+1 {{graph.loop has 3 iterations, and takes lines of 4}}
  %0 = graph.loop trips 3 slices(%x : tensor<4xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<f32>):
    graph.yield %a : tensor<f32>
  } -> tensor<3xf32>
  func.return
}

// -----

func.func @changes(%x: tensor<4xf32>) {
  // expected-error @+1 {{graph.loop carries (tensor<4xf32>) into its first iteration and (tensor<4xi1>) into the next}}
  %0 = graph.loop trips 3 carry(%x : tensor<4xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<4xf32>):
    %b = graph.greater %a, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    graph.yield %b : tensor<4xi1>
  } -> tensor<4xf32>
  func.return
}

// -----

func.func @arguments(%x: tensor<4xf32>) {
  // expected-error @+1 {{the region of graph.loop takes (tensor<4xf32>), and is given (tensor<i64>, tensor<4xf32>)}}
  %0 = graph.loop trips 3 carry(%x : tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } -> tensor<4xf32>
  func.return
}

// -----

func.func @backwards(%n: tensor<i64>, %x: tensor<4xf32>) {
  // expected-error @+1 {{graph.loop with reverse has a number of iterations}}
  %0 = graph.loop reverse count(%n : tensor<i64>) carry(%x : tensor<4xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } -> tensor<4xf32>
  func.return
}
