// RUN: penstock-opt %s -p 'quantize{scheme=qdq}' | filecheck %s --check-prefix QDQ
// RUN: penstock-opt %s -p 'quantize{scheme=qdq},integer-arithmetic' | filecheck %s --check-prefix INT
// RUN: penstock-opt %s -p 'quantize{scheme="power-of-two"}' | filecheck %s --check-prefix POT

builtin.module attributes {graph.ranges = {
    "x" = [-1.0, 3.0], "c" = [-9.0, 9.0], "p" = [-9.0, 9.0], "e" = [0.0, 100.0]}} {
  // QDQ-LABEL: func.func @main
  // QDQ-DAG: %[[S:.*]] = graph.constant dense<0.0156862754> : tensor<f32>
  // QDQ-DAG: %[[Z:.*]] = graph.constant dense<-64> : tensor<i8>
  // QDQ: %[[Q:.*]] = graph.quantize_linear %x, %[[S]], %[[Z]] : {{.*}} -> tensor<1x2x4x4xi8>
  // QDQ: %[[X:.*]] = graph.dequantize_linear %[[Q]]
  // QDQ: %[[W:.*]] = graph.dequantize_linear %{{.*}}, %{{.*}} axis 0 : (tensor<3x2x3x3xi8>, tensor<3xf32>)
  // QDQ: %[[C:.*]] = graph.conv %[[X]], %[[W]]
  // QDQ: %[[D:.*]] = graph.quantize_linear %[[C]]
  // QDQ: %[[E:.*]] = graph.dequantize_linear %[[D]]
  // QDQ: %[[P:.*]] = graph.max_pool %[[E]] {{.*}} -> tensor<1x3x2x2xf32>
  // QDQ: graph.quantize_linear %[[P]]
  // QDQ: graph.exp %{{.*}} {quantize_remark = "it has no integer form"}

  // The padding stands for 0, which is the zero point.
  // INT-LABEL: func.func @main
  // INT: %[[P:.*]] = graph.pad %{{.*}} pads [0, 0, 1, 1, 0, 0, 1, 1] value -64.0 : tensor<1x2x4x4xi8>
  // INT: graph.conv %[[P]], %{{.*}} pads [0, 0, 0, 0] {{.*}} accumulate i32
  // INT: graph.mul {{.*}} tensor<3x1x1xf32>
  // INT: graph.max_pool {{.*}} -> tensor<1x3x2x2xi8>

  // POT-LABEL: func.func @main
  // POT: graph.quantize_linear {{.*}} -> tensor<1x2x4x4xi8>
  // POT: %[[C:.*]] = graph.conv {{.*}} pads [1, 1, 1, 1] {{.*}} accumulate i32
  // POT: %[[B:.*]] = graph.add %[[C]]
  // POT: %[[R:.*]] = graph.shift_right %[[B]]
  // POT: %[[L:.*]] = graph.clip %[[R]] min -128.0 max 127.0
  // POT: %[[I:.*]] = graph.cast %[[L]] : tensor<1x3x4x4xi32> -> tensor<1x3x4x4xi8>
  // POT: %[[P:.*]] = graph.max_pool %[[I]] {{.*}} -> tensor<1x3x2x2xi8>
  // POT: graph.dequantize_linear %[[P]]
  func.func @main(%x: tensor<1x2x4x4xf32>) -> tensor<1x3x2x2xf32> {
    %w = graph.constant dense<2.500000e-01> : tensor<3x2x3x3xf32>
    %c = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
        : (tensor<1x2x4x4xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x4x4xf32>
    %p = graph.max_pool %c kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1]
        : tensor<1x3x4x4xf32> -> tensor<1x3x2x2xf32>
    %e = graph.exp %p : tensor<1x3x2x2xf32>
    func.return %e : tensor<1x3x2x2xf32>
  }
}
