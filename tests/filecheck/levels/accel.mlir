// RUN: penstock-opt %s --machine gemmini-fp32 | filecheck %s
// RUN: penstock-opt %s --machine gemmini-fp32 | penstock-opt | filecheck %s
// RUN: penstock-opt %s --machine gemmini-fp32 --print-op-generic | penstock-opt | filecheck %s

// One program, four levels: relu(x w + b) as commands, pipelined by hand to depth 2. While one pair of slots is
// multiplied the other is filled; the token of the command that read a slot last guards its next filling.

#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
#row = affine_map<(m, n) -> (n)>
#all = affine_map<(m, n) -> (m, n)>

// CHECK: func.func private @fused_0
func.func private @fused_0(%x: memref<64x128xf32>, %w: memref<128x64xf32>, %b: memref<64xf32>, %y: memref<64x64xf32>)
    attributes {device = @gemmini_fp32} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  // CHECK: mem.ring 2 at 2048 : !mem.ring<memref<16x32xf32, "spad">>
  %xs = mem.ring 2 at 2048 : !mem.ring<memref<16x32xf32, "spad">>
  // CHECK: mem.ring 2 at 6144 : !mem.ring<memref<32x64xf32, "spad">>
  %ws = mem.ring 2 at 6144 : !mem.ring<memref<32x64xf32, "spad">>
  %acc = mem.buffer at 0 : memref<16x64xf32, "acc">
  %ready = accel.ready
  // CHECK: scf.for
  %r:4 = scf.for %i = %c0 to %c64 step %c16 iter_args(%even = %ready, %odd = %ready, %drained = %ready, %base = %c0)
      -> (!accel.token, !accel.token, !accel.token, index) {
    %z = accel.exec @zero_acc extents [16, 64] maps [#all](%acc) after(%drained) : memref<16x64xf32, "acc">
    %next = arith.addi %base, %c4 : index
    // CHECK: scf.for
    %s:3 = scf.for %n = %base to %next step %c1 iter_args(%free = %even, %later = %odd, %done = %z)
        -> (!accel.token, !accel.token, !accel.token) {
      %m = arith.subi %n, %base : index
      %k = arith.muli %m, %c32 : index
      // CHECK: mem.slot
      %xslot = mem.slot %xs[%n] : !mem.ring<memref<16x32xf32, "spad">>
      %wslot = mem.slot %ws[%n] : !mem.ring<memref<32x64xf32, "spad">>
      // CHECK: accel.dma %x[%i, %k] to %xslot on "mvin" after(%free)
      %t0 = accel.dma %x[%i, %k] to %xslot on "mvin" after(%free)
          : memref<64x128xf32> to memref<16x32xf32, "spad">
      %t1 = accel.dma %w[%k, 0] to %wslot on "mvin" after(%free)
          : memref<128x64xf32> to memref<32x64xf32, "spad">
      // CHECK: accel.exec @gemm extents [16, 64, 32]
      %t2 = accel.exec @gemm extents [16, 64, 32] maps [#mk, #kn, #mn](%xslot, %wslot, %acc) after(%t0, %t1, %done)
          : memref<16x32xf32, "spad">, memref<32x64xf32, "spad">, memref<16x64xf32, "acc">
      scf.yield %later, %t2, %t2 : !accel.token, !accel.token, !accel.token
    }
    %t3 = accel.exec @mvin_add extents [16, 64] maps [#row, #all](%b, %acc) after(%s#2)
        : memref<64xf32>, memref<16x64xf32, "acc">
    %tile = memref.subview %y[%i, 0] [16, 64] [1, 1] : memref<64x64xf32> to memref<16x64xf32, strided<[64, 1], offset: ?>>
    // CHECK: accel.exec @mvout_relu
    %t4 = accel.exec @mvout_relu extents [16, 64] maps [#all, #all](%acc, %tile) after(%t3)
        : memref<16x64xf32, "acc">, memref<16x64xf32, strided<[64, 1], offset: ?>>
    scf.yield %s#0, %s#1, %t4, %next : !accel.token, !accel.token, !accel.token, index
  }
  // CHECK: accel.barrier
  accel.barrier
  func.return
}

func.func @main(%x: memref<64x128xf32> {graph.name = "x"}, %w: memref<128x64xf32> {graph.weight = "fc.weight"},
    %b: memref<64xf32> {graph.weight = "fc.bias"}, %y: memref<64x64xf32> {graph.output = "y"}) {
  func.call @fused_0(%x, %w, %b, %y)
      : (memref<64x128xf32>, memref<128x64xf32>, memref<64xf32>, memref<64x64xf32>) -> ()
  func.return
}
