// Loops: how they are written, and what is known of them before they run.
// RUN: penstock-opt %s | penstock-opt - | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt - | filecheck %s
// RUN: penstock-opt %s -p simplify | filecheck %s --check-prefix=KNOWN

func.func @written(%n: tensor<i64>, %c: tensor<i1>, %h: tensor<4xf32>, %xs: tensor<3x4xf32>) -> (tensor<4xf32>, tensor<3x4xf32>) {
// CHECK-LABEL: func.func @written
  %last, %all = graph.loop trips 3 count(%n : tensor<i64>) while(%c : tensor<i1>) carry(%h : tensor<4xf32>) slices(%xs : tensor<3x4xf32>) reads(%h, %c : tensor<4xf32>, tensor<i1>) {
  // CHECK-NEXT: %last, %all = graph.loop trips 3 count(%n : tensor<i64>) while(%c : tensor<i1>) carry(%h : tensor<4xf32>) slices(%xs : tensor<3x4xf32>) reads(%h, %c : tensor<4xf32>, tensor<i1>) {
  ^bb0(%i: tensor<i64>, %a: tensor<4xf32>, %x: tensor<4xf32>, %b: tensor<4xf32>, %d: tensor<i1>):
    %s = graph.add %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    graph.yield %d, %s, %b : tensor<i1>, tensor<4xf32>, tensor<4xf32>
    // CHECK: graph.yield %d, %s, %b : tensor<i1>, tensor<4xf32>, tensor<4xf32>
  } -> tensor<4xf32>, tensor<3x4xf32>
  // CHECK-NEXT: } -> tensor<4xf32>, tensor<3x4xf32>
  func.return %last, %all : tensor<4xf32>, tensor<3x4xf32>
}

func.func @once(%h: tensor<4xf32>, %xs: tensor<1x4xf32>) -> (tensor<4xf32>, tensor<1x4xf32>) {
// KNOWN-LABEL: func.func @once
// KNOWN-NEXT: %x = graph.reshape %xs : tensor<1x4xf32> -> tensor<4xf32>
// KNOWN-NEXT: %s = graph.add %h, %x
// KNOWN-NEXT: %all = graph.reshape %s : tensor<4xf32> -> tensor<1x4xf32>
// KNOWN-NEXT: func.return %s, %all
  %last, %all = graph.loop carry(%h : tensor<4xf32>) slices(%xs : tensor<1x4xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<4xf32>, %x: tensor<4xf32>):
    %s = graph.add %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    graph.yield %s, %s : tensor<4xf32>, tensor<4xf32>
  } -> tensor<4xf32>, tensor<1x4xf32>
  func.return %last, %all : tensor<4xf32>, tensor<1x4xf32>
}

func.func @unchanged(%h: tensor<4xf32>, %g: tensor<4xf32>, %k: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
// KNOWN-LABEL: func.func @unchanged
// KNOWN-NEXT: %last = graph.loop trips 5 carry(%h : tensor<4xf32>) reads(%g : tensor<4xf32>) {
// KNOWN-NEXT: ^bb0(%i: tensor<i64>, %a: tensor<4xf32>, %b: tensor<4xf32>):
// KNOWN: func.return %last, %g
  %two = graph.constant dense<2.0> : tensor<f32>
  %last, %same = graph.loop trips 5 carry(%h, %g : tensor<4xf32>, tensor<4xf32>) reads(%two, %k : tensor<f32>, tensor<4xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<4xf32>, %b: tensor<4xf32>, %t: tensor<f32>, %unused: tensor<4xf32>):
    %m = graph.mul %a, %t : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    %s = graph.add %m, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    graph.yield %s, %b : tensor<4xf32>, tensor<4xf32>
  } -> tensor<4xf32>, tensor<4xf32>
  func.return %last, %same : tensor<4xf32>, tensor<4xf32>
}

func.func @known_branch(%x: tensor<4xf32>) -> tensor<4xf32> {
// KNOWN-LABEL: func.func @known_branch
// KNOWN-NEXT: %e = graph.exp %x
// KNOWN-NEXT: func.return %e
  %true = graph.constant dense<true> : tensor<i1>
  %y = graph.if %true(%x) {
  ^bb0(%a: tensor<4xf32>):
    %e = graph.exp %a : tensor<4xf32>
    graph.yield %e : tensor<4xf32>
  } else {
  ^bb0(%a: tensor<4xf32>):
    graph.yield %a : tensor<4xf32>
  } : tensor<i1>, (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

func.func @unread(%n: tensor<i64>, %h: tensor<4xf32>, %xs: tensor<3x4xf32>) -> tensor<4xf32> {
// KNOWN-LABEL: func.func @unread
// KNOWN-NEXT: %last = graph.loop carry(%h : tensor<4xf32>) slices(%xs : tensor<3x4xf32>) {
// KNOWN-NEXT: ^bb0(%i: tensor<i64>, %a: tensor<4xf32>, %x: tensor<4xf32>):
// KNOWN-NEXT: %s = graph.add %a, %x
// KNOWN-NEXT: graph.yield %s : tensor<4xf32>
// KNOWN-NEXT: } -> tensor<4xf32>
// KNOWN-NEXT: func.return %last
  %counter, %last, %all = graph.loop carry(%n, %h : tensor<i64>, tensor<4xf32>) slices(%xs : tensor<3x4xf32>) {
  ^bb0(%i: tensor<i64>, %c: tensor<i64>, %a: tensor<4xf32>, %x: tensor<4xf32>):
    %next = graph.add %c, %i : (tensor<i64>, tensor<i64>) -> tensor<i64>
    %s = graph.add %a, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %t = graph.exp %x : tensor<4xf32>
    graph.yield %next, %s, %t : tensor<i64>, tensor<4xf32>, tensor<4xf32>
  } -> tensor<i64>, tensor<4xf32>, tensor<3x4xf32>
  func.return %last : tensor<4xf32>
}
