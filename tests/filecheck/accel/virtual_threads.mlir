// RUN: penstock-opt %s --machine gemmini -p 'accel-virtual-threads{threads=1}' | filecheck %s
// RUN: penstock-opt %s --machine gemmini -p 'accel-virtual-threads,accel-check-hazards,accel-assign-queues' | filecheck %s --check-prefix QUEUES

// CHECK-LABEL: func.func private @marked
// QUEUES-LABEL: func.func private @marked
func.func private @marked(%x: memref<64x16xi8>, %y: memref<64x16xi8>) attributes {device = @gemmini} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %end = arith.constant 64 : index
  // QUEUES:      accel.push "store" to "load"
  // QUEUES-NEXT: accel.push "store" to "load"
  // QUEUES-NEXT: scf.for
  // CHECK: scf.for %i = %zero to %{{.*}} step %{{.*}} iter_args
  scf.for %i = %zero to %end step %one {
    // CHECK: %a = mem.buffer at 0
    // CHECK-NEXT: %a_1 = mem.buffer at 16
    %a = mem.buffer at 0 : memref<1x16xi8, "spad">
    // CHECK-NEXT: accel.dma %x[%i, 0] to %a on "mvin"
    // CHECK-NEXT: accel.dma %x[%i_1, 0] to %a_1 on "mvin"
    // QUEUES:      accel.pop "load" from "store"
    // QUEUES-NEXT: accel.dma %x[%i, 0] to %a on "mvin"
    // QUEUES-NEXT: accel.push "load" to "store"
    // QUEUES-NEXT: accel.pop "load" from "store"
    // QUEUES-NEXT: accel.dma %x[%i_1, 0] to %a_1 on "mvin"
    %t = accel.dma %x[%i, 0] to %a on "mvin" : memref<64x16xi8> to memref<1x16xi8, "spad">
    // CHECK-NEXT: accel.dma %a to %y[%i, 0] on "mvout"
    // CHECK-NEXT: accel.dma %a_1 to %y[%i_1, 0] on "mvout"
    %u = accel.dma %a to %y[%i, 0] on "mvout" after (%t) : memref<1x16xi8, "spad"> to memref<64x16xi8>
    accel.wait %u
  } {virtual_threads = 2 : i64}
  accel.barrier
  func.return
}

// A loop without a mark is left alone if there is one thread.
// CHECK-LABEL: func.func private @unmarked
// CHECK: mem.buffer
// CHECK-NOT: mem.buffer
func.func private @unmarked(%x: memref<64x16xi8>, %y: memref<64x16xi8>) attributes {device = @gemmini} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %end = arith.constant 64 : index
  scf.for %i = %zero to %end step %one {
    %a = mem.buffer at 0 : memref<1x16xi8, "spad">
    %t = accel.dma %x[%i, 0] to %a on "mvin" : memref<64x16xi8> to memref<1x16xi8, "spad">
    %u = accel.dma %a to %y[%i, 0] on "mvout" after (%t) : memref<1x16xi8, "spad"> to memref<64x16xi8>
    accel.wait %u
  }
  accel.barrier
  func.return
}
