// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

// One program, four levels: relu(x w + b) on tensors, tiled 16 x 64 x 32, the epilogue inside the spatial tile.

// CHECK: func.func private @fused_0
// CHECK-SAME: device = @gemmini_fp32
// CHECK: scf.for
// CHECK-SAME: iter_args
// CHECK: scf.for
// CHECK-SAME: iter_args
// CHECK: linalg.generic
// CHECK: tensor.insert_slice

func.func @main(%x: tensor<64x128xf32> {graph.name = "x"}, %fc.weight: tensor<128x64xf32> {graph.weight = "fc.weight"}, %fc.bias: tensor<64xf32> {graph.weight = "fc.bias"}) -> (tensor<64x64xf32> {graph.name = "y"}) {
  %y = func.call @fused_0(%x, %fc.weight, %fc.bias) : (tensor<64x128xf32>, tensor<128x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
func.func private @fused_0(%a: tensor<64x128xf32>, %b: tensor<128x64xf32>, %b_1: tensor<64xf32>) -> tensor<64x64xf32> attributes {device = @gemmini_fp32, macs = 524288 : i64} {
  %relu = tensor.empty() : tensor<64x64xf32>
  %0 = arith.constant 0 : index
  %1 = arith.constant 64 : index
  %2 = arith.constant 16 : index
  %3 = arith.constant 128 : index
  %4 = arith.constant 32 : index
  %relu_1 = scf.for %5 = %0 to %1 step %2 iter_args(%6 = %relu) -> (tensor<64x64xf32>) {
    %7 = tensor.extract_slice %6[%5, 0] [16, 64] [1, 1] : tensor<64x64xf32> to tensor<16x64xf32>
    %matmul = tensor.empty() : tensor<16x64xf32>
    %8 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} outs(%matmul : tensor<16x64xf32>) {
    ^bb0(%9: f32):
      %10 = arith.constant 0.000000e+00 : f32
      linalg.yield %10 : f32
    } -> tensor<16x64xf32>
    %11 = scf.for %12 = %0 to %3 step %4 iter_args(%13 = %8) -> (tensor<16x64xf32>) {
      %a_1 = tensor.extract_slice %a[%5, %12] [16, 32] [1, 1] : tensor<64x128xf32> to tensor<16x32xf32>
      %b_2 = tensor.extract_slice %b[%12, 0] [32, 64] [1, 1] : tensor<128x64xf32> to tensor<32x64xf32>
      %14 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a_1, %b_2 : tensor<16x32xf32>, tensor<32x64xf32>) outs(%13 : tensor<16x64xf32>) {
      ^bb0(%15: f32, %16: f32, %17: f32):
        %18 = arith.mulf %15, %16 : f32
        %19 = arith.addf %17, %18 : f32
        linalg.yield %19 : f32
      } -> tensor<16x64xf32>
      scf.yield %14 : tensor<16x64xf32>
    }
    %20 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%b_1 : tensor<64xf32>) outs(%11 : tensor<16x64xf32>) {
    ^bb0(%21: f32, %22: f32):
      %23 = arith.addf %22, %21 : f32
      linalg.yield %23 : f32
    } -> tensor<16x64xf32>
    %24 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%20 : tensor<16x64xf32>) outs(%7 : tensor<16x64xf32>) {
    ^bb0(%25: f32, %26: f32):
      %27 = arith.constant 0.000000e+00 : f32
      %28 = arith.maximumf %25, %27 : f32
      linalg.yield %28 : f32
    } -> tensor<16x64xf32>
    %29 = tensor.insert_slice %24 into %6[%5, 0] [16, 64] [1, 1] : tensor<16x64xf32> into tensor<64x64xf32>
    scf.yield %29 : tensor<64x64xf32>
  }
  func.return %relu_1 : tensor<64x64xf32>
}
