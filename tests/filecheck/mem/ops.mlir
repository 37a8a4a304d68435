// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

func.func @places(%x: memref<64x128xf32>, %i: index, %c: f32) {
  // CHECK: %free = mem.buffer : memref<16x32xf32, "spad">
  %free = mem.buffer : memref<16x32xf32, "spad">
  // CHECK: %placed = mem.buffer at 2048 : memref<16x30xf32, strided<[32, 1]>, "spad">
  %placed = mem.buffer at 2048 : memref<16x30xf32, strided<[32, 1]>, "spad">
  // CHECK: %arena = mem.buffer at 64 : memref<16x32xf32>
  %arena = mem.buffer at 64 : memref<16x32xf32>

  // CHECK: mem.copy %x[%i, 3] to %free : memref<64x128xf32> to memref<16x32xf32, "spad">
  // GENERIC: "mem.copy"(%x, %free, %i) <{static_source_offsets = array<i64: -9223372036854775808, 3>, static_dest_offsets = array<i64>
  mem.copy %x[%i, 3] to %free : memref<64x128xf32> to memref<16x32xf32, "spad">
  // CHECK: mem.copy %x[-5, %i] to %free else %c : memref<64x128xf32> to memref<16x32xf32, "spad">
  mem.copy %x[-5, %i] to %free else %c : memref<64x128xf32> to memref<16x32xf32, "spad">
  // CHECK: mem.copy %x[200, 0] to %free else %c : memref<64x128xf32> to memref<16x32xf32, "spad">
  mem.copy %x[200, 0] to %free else %c : memref<64x128xf32> to memref<16x32xf32, "spad">
  // CHECK: mem.copy %free to %x[%i, %i] : memref<16x32xf32, "spad"> to memref<64x128xf32>
  mem.copy %free to %x[%i, %i] : memref<16x32xf32, "spad"> to memref<64x128xf32>
  // CHECK: mem.copy %free to %arena : memref<16x32xf32, "spad"> to memref<16x32xf32>
  mem.copy %free to %arena : memref<16x32xf32, "spad"> to memref<16x32xf32>

  // CHECK: %r = mem.ring 2 at 4096 : !mem.ring<memref<16x32xf32, "spad">>
  %r = mem.ring 2 at 4096 : !mem.ring<memref<16x32xf32, "spad">>
  // CHECK: mem.ring 3 pitch 128 at 0 : !mem.ring<memref<8x3xf32, strided<[4, 1]>, "spad">>
  %p = mem.ring 3 pitch 128 at 0 : !mem.ring<memref<8x3xf32, strided<[4, 1]>, "spad">>
  // CHECK: %s = mem.slot %r[%i] : !mem.ring<memref<16x32xf32, "spad">>
  %s = mem.slot %r[%i] : !mem.ring<memref<16x32xf32, "spad">>
  // CHECK: mem.copy %s to %arena : memref<16x32xf32, "spad"> to memref<16x32xf32>
  mem.copy %s to %arena : memref<16x32xf32, "spad"> to memref<16x32xf32>
  func.return
}
