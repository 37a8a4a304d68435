// RUN: penstock-opt %s -p graph-to-tensor | filecheck %s
// RUN: penstock-opt %s -p graph-to-tensor --print-op-generic | penstock-opt | filecheck %s

// Two groups of the same structure are one kernel; weights become arguments after the inputs, one a name.

func.func @main(%x: tensor<2x4xf32> {graph.name = "x"}) -> (tensor<2x4xf32> {graph.name = "y"}) {
  %w = graph.constant #graph.weight<"fc.weight"> : tensor<4x4xf32>
  %b = graph.constant #graph.weight<"fc.bias"> : tensor<4xf32>
  %h = graph.fused(%x, %w, %b) pattern complex_out_fusable {
  ^bb0(%x0: tensor<2x4xf32>, %w0: tensor<4x4xf32>, %b0: tensor<4xf32>):
    %p = graph.gemm %x0, %w0, %b0 trans_b true : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
    %r = graph.relu %p : tensor<2x4xf32>
    graph.yield %r : tensor<2x4xf32>
  } : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %y = graph.fused(%h, %w, %b) pattern complex_out_fusable {
  ^bb0(%x0: tensor<2x4xf32>, %w0: tensor<4x4xf32>, %b0: tensor<4xf32>):
    %p = graph.gemm %x0, %w0, %b0 trans_b true : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
    %r = graph.relu %p : tensor<2x4xf32>
    graph.yield %r : tensor<2x4xf32>
  } : (tensor<2x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}

// CHECK:       func.func @main(%x: tensor<2x4xf32> {graph.name = "x"},
// CHECK-SAME:    tensor<4x4xf32> {graph.weight = "fc.weight"},
// CHECK-SAME:    tensor<4xf32> {graph.weight = "fc.bias"})
// CHECK-SAME:    -> (tensor<2x4xf32> {graph.name = "y"})
// CHECK-NEXT:    [[H:%.*]] = func.call @fused_0(%x, [[W:%.*]], [[B:%.*]]) :
// CHECK-NEXT:    [[Y:%.*]] = func.call @fused_0([[H]], [[W]], [[B]]) :
// CHECK-NEXT:    func.return [[Y]]
// CHECK:       func.func private @fused_0([[X0:%.*]]: tensor<2x4xf32>, [[W0:%.*]]: tensor<4x4xf32>, [[B0:%.*]]: tensor<4xf32>) -> tensor<2x4xf32> {
// CHECK-NEXT:    [[E:%.*]] = tensor.empty() : tensor<2x4xf32>
// CHECK-NEXT:    [[F:%.*]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} outs([[E]] : tensor<2x4xf32>) {
// CHECK-NEXT:    ^bb0(%{{.*}}: f32):
// CHECK-NEXT:      [[Z:%.*]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:      linalg.yield [[Z]] : f32
// CHECK-NEXT:    } -> tensor<2x4xf32>
// CHECK-NEXT:    [[P:%.*]] = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins([[X0]], [[W0]] : tensor<2x4xf32>, tensor<4x4xf32>) outs([[F]] : tensor<2x4xf32>) {
// CHECK-NEXT:    ^bb0([[A1:%.*]]: f32, [[A2:%.*]]: f32, [[A3:%.*]]: f32):
// CHECK-NEXT:      [[M:%.*]] = arith.mulf [[A1]], [[A2]] : f32
// CHECK-NEXT:      [[S:%.*]] = arith.addf [[A3]], [[M]] : f32
// CHECK-NEXT:      linalg.yield [[S]] : f32
// CHECK-NEXT:    } -> tensor<2x4xf32>
// CHECK-NEXT:    [[E1:%.*]] = tensor.empty() : tensor<2x4xf32>
// CHECK-NEXT:    [[Q:%.*]] = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins([[P]], [[B0]] : tensor<2x4xf32>, tensor<4xf32>) outs([[E1]] : tensor<2x4xf32>) {
// CHECK:           arith.addf
// CHECK:         [[E2:%.*]] = tensor.empty() : tensor<2x4xf32>
// CHECK-NEXT:    [[R:%.*]] = linalg.generic {{.*}} ins([[Q]] : tensor<2x4xf32>) outs([[E2]] : tensor<2x4xf32>) {
// CHECK-NEXT:    ^bb0([[V:%.*]]: f32, %{{.*}}: f32):
// CHECK-NEXT:      [[Z1:%.*]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:      arith.maximumf [[V]], [[Z1]] : f32
// CHECK:         func.return [[R]] : tensor<2x4xf32>
// CHECK-NOT:   func.func
