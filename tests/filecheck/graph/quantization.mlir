// Linear quantisation, and contractions with an accumulator.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @quantized(%x: tensor<2x3xf32>, %q: tensor<2x3xui8>, %s: tensor<f32>, %z: tensor<ui8>, %v: tensor<3xf32>, %w: tensor<2xf32>) {
// CHECK-LABEL: func.func @quantized
  %0 = graph.quantize_linear %x, %s, %z : (tensor<2x3xf32>, tensor<f32>, tensor<ui8>) -> tensor<2x3xui8>
  // CHECK-NEXT: %0 = graph.quantize_linear %x, %s, %z : (tensor<2x3xf32>, tensor<f32>, tensor<ui8>) -> tensor<2x3xui8>
  %1 = graph.quantize_linear %x, %w axis 0 : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x3xi8>
  // CHECK-NEXT: %1 = graph.quantize_linear %x, %w axis 0 : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x3xi8>
  %2 = graph.dequantize_linear %q, %v axis 1 : (tensor<2x3xui8>, tensor<3xf32>) -> tensor<2x3xf32>
  // CHECK-NEXT: %2 = graph.dequantize_linear %q, %v : (tensor<2x3xui8>, tensor<3xf32>) -> tensor<2x3xf32>
  func.return
}

func.func @accumulated(%a: tensor<2x3xui8>, %b: tensor<3x4xi8>, %c: tensor<4xi32>, %x: tensor<1x5x5x3xf16>, %w: tensor<3x3x3x4xf16>) {
// CHECK-LABEL: func.func @accumulated
  %0 = graph.matmul %a, %b accumulate i32 : (tensor<2x3xui8>, tensor<3x4xi8>) -> tensor<2x4xi32>
  // CHECK-NEXT: %0 = graph.matmul %a, %b accumulate i32 : (tensor<2x3xui8>, tensor<3x4xi8>) -> tensor<2x4xi32>
  %1 = graph.gemm %a, %b, %c accumulate i32 : (tensor<2x3xui8>, tensor<3x4xi8>, tensor<4xi32>) -> tensor<2x4xi32>
  // CHECK-NEXT: %1 = graph.gemm %a, %b, %c accumulate i32 : (tensor<2x3xui8>, tensor<3x4xi8>, tensor<4xi32>) -> tensor<2x4xi32>
  %2 = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC" accumulate f32 : (tensor<1x5x5x3xf16>, tensor<3x3x3x4xf16>) -> tensor<1x3x3x4xf32>
  // CHECK-NEXT: %2 = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC" accumulate f32 : (tensor<1x5x5x3xf16>, tensor<3x3x3x4xf16>) -> tensor<1x3x3x4xf32>
  func.return
}
