// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

// One program, four levels: relu(x w + b) on memrefs, promoted, tensorized and planned. An offset is text: edit it.

// CHECK: func.func private @fused_0
// CHECK: mem.buffer at 0 : memref<16x64xf32, "acc">
// CHECK: library_call = "zero_acc"
// CHECK: mem.copy {{.*}} to memref<16x32xf32, "spad">
// CHECK: mem.copy {{.*}} to memref<32x64xf32, "spad">
// CHECK: library_call = "gemm"
// CHECK: library_call = "mvin_add"
// CHECK: library_call = "mvout_relu"

func.func @main(%x: memref<64x128xf32> {graph.name = "x"}, %fc.weight: memref<128x64xf32> {graph.weight = "fc.weight"}, %fc.bias: memref<64xf32> {graph.weight = "fc.bias"}, %y: memref<64x64xf32> {graph.output = "y"}) {
  func.call @fused_0(%x, %fc.weight, %fc.bias, %y) : (memref<64x128xf32>, memref<128x64xf32>, memref<64xf32>, memref<64x64xf32>) -> ()
  func.return
}
func.func private @fused_0(%a: memref<64x128xf32>, %b: memref<128x64xf32>, %b_1: memref<64xf32>, %relu: memref<64x64xf32>) attributes {device = @gemmini_fp32, macs = 524288 : i64} {
  %0 = arith.constant 0 : index
  %1 = arith.constant 64 : index
  %2 = arith.constant 16 : index
  %3 = arith.constant 128 : index
  %4 = arith.constant 32 : index
  scf.for %5 = %0 to %1 step %2 {
    %6 = memref.subview %relu[%5, 0] [16, 64] [1, 1] : memref<64x64xf32> to memref<16x64xf32, strided<[64, 1], offset: ?>>
    %matmul = mem.buffer at 0 : memref<16x64xf32, "acc">
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"], library_call = "zero_acc"} outs(%matmul : memref<16x64xf32, "acc">) {
    ^bb0(%7: f32):
      %8 = arith.constant 0.000000e+00 : f32
      linalg.yield %8 : f32
    }
    scf.for %9 = %0 to %3 step %4 {
      %a_1 = memref.subview %a[%5, %9] [16, 32] [1, 1] : memref<64x128xf32> to memref<16x32xf32, strided<[128, 1], offset: ?>>
      %a_2 = mem.buffer at 8192 : memref<16x32xf32, "spad">
      mem.copy %a_1 to %a_2 : memref<16x32xf32, strided<[128, 1], offset: ?>> to memref<16x32xf32, "spad">
      %b_2 = memref.subview %b[%9, 0] [32, 64] [1, 1] : memref<128x64xf32> to memref<32x64xf32, strided<[64, 1], offset: ?>>
      %b_3 = mem.buffer at 0 : memref<32x64xf32, "spad">
      mem.copy %b_2 to %b_3 : memref<32x64xf32, strided<[64, 1], offset: ?>> to memref<32x64xf32, "spad">
      linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"], library_call = "gemm"} ins(%a_2, %b_3 : memref<16x32xf32, "spad">, memref<32x64xf32, "spad">) outs(%matmul : memref<16x64xf32, "acc">) {
      ^bb0(%10: f32, %11: f32, %12: f32):
        %13 = arith.mulf %10, %11 : f32
        %14 = arith.addf %12, %13 : f32
        linalg.yield %14 : f32
      }
    }
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"], library_call = "mvin_add"} ins(%b_1 : memref<64xf32>) outs(%matmul : memref<16x64xf32, "acc">) {
    ^bb0(%15: f32, %16: f32):
      %17 = arith.addf %16, %15 : f32
      linalg.yield %17 : f32
    }
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"], library_call = "mvout_relu"} ins(%matmul : memref<16x64xf32, "acc">) outs(%6 : memref<16x64xf32, strided<[64, 1], offset: ?>>) {
    ^bb0(%18: f32, %19: f32):
      %20 = arith.constant 0.000000e+00 : f32
      %21 = arith.maximumf %18, %20 : f32
      linalg.yield %21 : f32
    }
  }
  func.return
}
