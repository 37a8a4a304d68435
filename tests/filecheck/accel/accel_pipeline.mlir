// RUN: penstock-opt %s --machine gemmini-fp32 -p 'accel-pipeline{depth=3}' | filecheck %s
// RUN: penstock-opt %s --machine gemmini-fp32 -p 'accel-pipeline{depth=3}' --print-op-generic | penstock-opt | filecheck %s

// The ring stands before the nest, its number goes on over both loops, and three tokens rotate through them. The fourth is of the
// store: what is stored to the same rows a round later on an engine that has many in flight.

// CHECK:      %c_ring = mem.ring 3 at 0 : !mem.ring<memref<4x4xf32, "acc">>
// CHECK-NEXT: %{{.*}} = scf.for %o = %zero to %two step %one iter_args(
// CHECK:        scf.for %i = %zero to %end step %tile iter_args(%[[A:[0-9]+]] = %{{[0-9]+}}, %[[B:[0-9]+]] = %{{[0-9]+}}, %[[C:[0-9]+]] = %{{[0-9]+}},
// CHECK:          accel.dma %x[%i, 0] to %c on "mvin" after(%[[A]])
// CHECK-NEXT:     %u = accel.dma %c to %y[%i, 0] on "mvout" after(
// CHECK:          scf.yield %[[B]], %[[C]], %u
func.func private @k(%x: memref<64x4xf32>, %y: memref<64x4xf32>) attributes {device = @gemmini_fp32} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %tile = arith.constant 4 : index
  %end = arith.constant 64 : index
  scf.for %o = %zero to %two step %one {
    scf.for %i = %zero to %end step %tile {
      %c = mem.buffer at 0 : memref<4x4xf32, "acc">
      %t = accel.dma %x[%i, 0] to %c on "mvin" : memref<64x4xf32> to memref<4x4xf32, "acc">
      %u = accel.dma %c to %y[%i, 0] on "mvout" : memref<4x4xf32, "acc"> to memref<64x4xf32>
    }
  }
  accel.barrier
  func.return
}
