// Matrix products, normalisations and softmax.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @products(%a: tensor<4x2xf32>, %b: tensor<5x4xf32>, %c: tensor<5xf32>, %p: tensor<3x1x4x2xf32>, %q: tensor<6x2x7xf32>, %v: tensor<2xf32>) {
// CHECK-LABEL: func.func @products
  %0 = graph.gemm %a, %b, %c trans_a true trans_b true : (tensor<4x2xf32>, tensor<5x4xf32>, tensor<5xf32>) -> tensor<2x5xf32>
  // CHECK-NEXT: %0 = graph.gemm %a, %b, %c trans_a true trans_b true : (tensor<4x2xf32>, tensor<5x4xf32>, tensor<5xf32>) -> tensor<2x5xf32>
  %1 = graph.gemm %b, %a alpha 0.5 beta 2.0 : (tensor<5x4xf32>, tensor<4x2xf32>) -> tensor<5x2xf32>
  // CHECK-NEXT: %1 = graph.gemm %b, %a alpha 0.5 beta 2.0 : (tensor<5x4xf32>, tensor<4x2xf32>) -> tensor<5x2xf32>
  %2 = graph.matmul %p, %q : (tensor<3x1x4x2xf32>, tensor<6x2x7xf32>) -> tensor<3x6x4x7xf32>
  // CHECK-NEXT: %2 = graph.matmul %p, %q : (tensor<3x1x4x2xf32>, tensor<6x2x7xf32>) -> tensor<3x6x4x7xf32>
  %3 = graph.matmul %p, %v : (tensor<3x1x4x2xf32>, tensor<2xf32>) -> tensor<3x1x4xf32>
  // CHECK-NEXT: %3 = graph.matmul %p, %v : (tensor<3x1x4x2xf32>, tensor<2xf32>) -> tensor<3x1x4xf32>
  %4 = graph.matmul %v, %v : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  // CHECK-NEXT: %4 = graph.matmul %v, %v : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  func.return
}

func.func @normalisations(%x: tensor<1x3x4x4xf32>, %y: tensor<1x4x4x3xf32>, %v: tensor<3xf32>) {
// CHECK-LABEL: func.func @normalisations
  %0 = graph.batch_normalization %x, %v, %v, %v, %v : (tensor<1x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<1x3x4x4xf32>
  // CHECK-NEXT: %0 = graph.batch_normalization %x, %v, %v, %v, %v : (tensor<1x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<1x3x4x4xf32>
  %1 = graph.batch_normalization %y, %v, %v, %v, %v epsilon 0.001 axis 3 : (tensor<1x4x4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<1x4x4x3xf32>
  // CHECK-NEXT: %1 = graph.batch_normalization %y, %v, %v, %v, %v epsilon 0.001 axis 3 : (tensor<1x4x4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<1x4x4x3xf32>
  %2 = graph.softmax %x axis 1 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  // CHECK-NEXT: %2 = graph.softmax %x axis 1 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  %3 = graph.log_softmax %x axis 3 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  // CHECK-NEXT: %3 = graph.log_softmax %x axis 3 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  %4 = graph.lrn %x size 5 alpha 0.0001 beta 0.5 bias 2.0 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  // CHECK-NEXT: %4 = graph.lrn %x size 5 beta 0.5 bias 2.0 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  %5 = graph.lrn %y size 3 layout "NHWC" : tensor<1x4x4x3xf32> -> tensor<1x4x4x3xf32>
  // CHECK-NEXT: %5 = graph.lrn %y size 3 layout "NHWC" : tensor<1x4x4x3xf32> -> tensor<1x4x4x3xf32>
  func.return
}
