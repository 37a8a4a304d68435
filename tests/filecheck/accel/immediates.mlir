// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

#id = affine_map<(n) -> (n)>

func.func @commands(%x: memref<512xf32, "spm">, %y: memref<512xf32, "spm">, %z: memref<64xi32, "acc">) {
  // CHECK: %t0 = accel.exec @max_imm imm [0.000000e+00 : f32] extents [512] maps [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>](%x, %y) : memref<512xf32, "spm">, memref<512xf32, "spm">
  // GENERIC: "accel.exec"(%x, %y) <{intrinsic = @max_imm, immediates = [0.000000e+00 : f32], extents = array<i64: 512>
  %t0 = accel.exec @max_imm imm [0.0 : f32] extents [512] maps [#id, #id] (%x, %y)
      : memref<512xf32, "spm">, memref<512xf32, "spm">
  // CHECK: %t1 = accel.exec @clamp imm [-128 : i32, 127 : i32] extents [64] maps [affine_map<(d0) -> (d0)>](%z) after(%t0) : memref<64xi32, "acc">
  %t1 = accel.exec @clamp imm [-128 : i32, 127 : i32] extents [64] maps [#id] (%z) after (%t0) : memref<64xi32, "acc">
  func.return
}
