// Weights, and constants in the text.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @constants() {
// CHECK-LABEL: func.func @constants
  %0 = graph.constant #graph.weight<"layer.0/\"w\""> : tensor<4x3xf32>
  // CHECK-NEXT: %0 = graph.constant #graph.weight<"layer.0/\22w\22"> : tensor<4x3xf32>
  %1 = graph.constant {note = "kept"} #graph.weight<"b"> : tensor<4xbf16>
  // CHECK-NEXT: %1 = graph.constant {note = "kept"} #graph.weight<"b"> : tensor<4xbf16>
  %2 = graph.constant dense<[1, -2]> : tensor<2xi64>
  // CHECK-NEXT: %2 = graph.constant dense<[1, -2]> : tensor<2xi64>
  %3 = graph.constant dense<[0, 255]> : tensor<2xui8>
  // CHECK-NEXT: %3 = graph.constant dense<[0, 255]> : tensor<2xui8>
  %4 = graph.constant dense<[true, false]> : tensor<2xi1>
  // CHECK-NEXT: %4 = graph.constant dense<[true, false]> : tensor<2xi1>
  %5 = graph.constant dense<0.5> : tensor<f32>
  // CHECK-NEXT: %5 = graph.constant dense<5.000000e-01> : tensor<f32>
  %6 = graph.constant dense<-0.0> : tensor<2x2xf16>
  // CHECK-NEXT: %6 = graph.constant dense<-0.000000e+00> : tensor<2x2xf16>
  %7 = graph.constant dense<> : tensor<0xi64>
  // CHECK-NEXT: %7 = graph.constant dense<> : tensor<0xi64>
  func.return
}
