// What is printed otherwise than it is written: properties that have their default values, and numbers.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @defaults(%x: tensor<2x3xf32>, %i: tensor<4xui8>, %y: tensor<1x3x4x4xf32>, %q: tensor<2x3xui8>, %v: tensor<3xf32>) {
// CHECK-LABEL: func.func @defaults
  %0 = graph.leaky_relu %x alpha 0.01 : tensor<2x3xf32>
  // CHECK-NEXT: %0 = graph.leaky_relu %x : tensor<2x3xf32>
  %1 = graph.elu %x alpha 2.0 {note = "kept"} : tensor<2x3xf32>
  // CHECK-NEXT: %1 = graph.elu %x alpha 2.0 {note = "kept"} : tensor<2x3xf32>
  %2 = graph.selu %x alpha 1.5 gamma 1.0e-7 : tensor<2x3xf32>
  // CHECK-NEXT: %2 = graph.selu %x alpha 1.5 gamma 1.0e-07 : tensor<2x3xf32>
  %3 = graph.clip %i min 3 : tensor<4xui8>
  // CHECK-NEXT: %3 = graph.clip %i min 3.0 : tensor<4xui8>
  %4 = graph.lrn %y size 5 alpha 0.0001 beta 0.5 bias 2.0 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  // CHECK-NEXT: %4 = graph.lrn %y size 5 beta 0.5 bias 2.0 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  %5 = graph.dequantize_linear %q, %v axis 1 : (tensor<2x3xui8>, tensor<3xf32>) -> tensor<2x3xf32>
  // CHECK-NEXT: %5 = graph.dequantize_linear %q, %v : (tensor<2x3xui8>, tensor<3xf32>) -> tensor<2x3xf32>
  func.return
}
