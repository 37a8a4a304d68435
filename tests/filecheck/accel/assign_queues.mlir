// RUN: penstock-opt %s --machine vta-pynq -p accel-assign-queues | filecheck %s
// RUN: penstock-opt %s --machine vta-pynq -p 'accel-assign-queues,accel-assign-queues' | filecheck %s
// RUN: penstock-opt %s --machine vta-pynq -p 'accel-assign-queues,accel-check-hazards' | filecheck %s

#rows = affine_map<(m, n) -> (m, n)>

// A ring of two accumulators: the compute unit may be two rounds ahead of the store.
// CHECK-LABEL: func.func private @ring
func.func private @ring(%y: memref<64x16xi8>) attributes {device = @vta_pynq} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %end = arith.constant 64 : index
  %accs = mem.ring 2 at 0 : !mem.ring<memref<1x16xi32, "acc">>
  %free = accel.ready
  // CHECK:      accel.push "store" to "compute"
  // CHECK-NEXT: accel.push "store" to "compute"
  // CHECK-NEXT: scf.for %i = %zero to %end step %one {
  %d0, %d1 = scf.for %i = %zero to %end step %one iter_args(%two_ago = %free, %before = %free)
      -> (!accel.token, !accel.token) {
    %acc = mem.slot %accs[%i] : !mem.ring<memref<1x16xi32, "acc">>
    // CHECK:      accel.pop "compute" from "store"
    // CHECK-NEXT: accel.exec @gemm_reset
    // CHECK-NEXT: accel.push "compute" to "store"
    %t = accel.exec @gemm_reset extents [1, 16] maps [#rows] (%acc) after (%two_ago) : memref<1x16xi32, "acc">
    %row = memref.subview %y[%i, 0] [1, 16] [1, 1] : memref<64x16xi8> to memref<1x16xi8, strided<[16, 1], offset: ?>>
    // CHECK:      accel.pop "store" from "compute"
    // CHECK-NEXT: accel.exec @store_narrow
    // CHECK-NEXT: accel.push "store" to "compute"
    // CHECK-NEXT: }
    %u = accel.exec @store_narrow extents [1, 16] maps [#rows, #rows] (%acc, %row) after (%t)
      : memref<1x16xi32, "acc">, memref<1x16xi8, strided<[16, 1], offset: ?>>
    scf.yield %before, %u : !accel.token, !accel.token
  }
  // CHECK-NEXT: accel.pop "compute" from "store"
  // CHECK-NEXT: accel.pop "compute" from "store"
  // CHECK-NEXT: accel.barrier
  accel.barrier
  func.return
}

// No queue leads from the store to the load unit: the compute unit passes the token on.
// CHECK-LABEL: func.func private @round
func.func private @round(%y: memref<1x16xi8>) attributes {device = @vta_pynq} {
  %acc = mem.buffer at 0 : memref<1x16xi32, "acc">
  %inp = mem.buffer at 0 : memref<1x16xi8, "inp">
  // CHECK:      accel.exec @gemm_reset
  // CHECK-NEXT: accel.push "compute" to "store"
  %t = accel.exec @gemm_reset extents [1, 16] maps [#rows] (%acc) : memref<1x16xi32, "acc">
  // CHECK-NEXT: accel.pop "store" from "compute"
  // CHECK-NEXT: accel.exec @store_narrow
  // CHECK-NEXT: accel.push "store" to "compute"
  // CHECK-NEXT: accel.pop "compute" from "store"
  // CHECK-NEXT: accel.push "compute" to "load"
  %u = accel.exec @store_narrow extents [1, 16] maps [#rows, #rows] (%acc, %y) after (%t)
    : memref<1x16xi32, "acc">, memref<1x16xi8>
  // CHECK-NEXT: accel.pop "load" from "compute"
  // CHECK-NEXT: accel.dma %y to %inp on "load_inp" :
  %v = accel.dma %y to %inp on "load_inp" after (%u) : memref<1x16xi8> to memref<1x16xi8, "inp">
  accel.barrier
  func.return
}
