// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

func.func @commands(%x: memref<64x128xf32>, %i: index, %c: f32) {
  %a = mem.buffer at 0 : memref<16x32xf32, "spad">
  %acc = mem.buffer at 0 : memref<16x16xf32, "acc">
  // CHECK: %free = accel.ready
  %free = accel.ready
  // CHECK: %t0 = accel.dma %x[%i, -1] to %a clipped on "mvin" after(%free) : memref<64x128xf32> to memref<16x32xf32, "spad">
  %t0 = accel.dma %x[%i, -1] to %a clipped on "mvin" after(%free) : memref<64x128xf32> to memref<16x32xf32, "spad">
  // CHECK: %t1 = accel.dma %x[%i, -1] to %a else %c on "mvin" : memref<64x128xf32> to memref<16x32xf32, "spad">
  %t1 = accel.dma %x[%i, -1] to %a else %c on "mvin" : memref<64x128xf32> to memref<16x32xf32, "spad">
  // CHECK: %both = accel.ready after(%t0, %t1)
  %both = accel.ready after(%t0, %t1)
  // CHECK: %t2 = accel.exec @gemm extents [16, 16, 8] maps [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>](%a, %a, %acc) after(%both) : memref<16x32xf32, "spad">, memref<16x32xf32, "spad">, memref<16x16xf32, "acc">
  // GENERIC: "accel.exec"(%a, %a, %acc, %both) <{intrinsic = @gemm, extents = array<i64: 16, 16, 8>
  %t2 = accel.exec @gemm extents [16, 16, 8]
      maps [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]
      (%a, %a, %acc) after(%both)
      : memref<16x32xf32, "spad">, memref<16x32xf32, "spad">, memref<16x16xf32, "acc">
  // CHECK: accel.push "load" to "execute"
  accel.push "load" to "execute"
  // CHECK: accel.pop "execute" from "load"
  accel.pop "execute" from "load"
  // CHECK: accel.wait %t2, %t1
  accel.wait %t2, %t1
  // CHECK: accel.barrier
  accel.barrier
  func.return
}
