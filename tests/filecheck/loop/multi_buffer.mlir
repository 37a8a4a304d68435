// RUN: penstock-opt %s --machine gemmini-fp32 -p 'multi-buffer{depth=3 scopes="spad"}' | filecheck %s
// RUN: penstock-opt %s --machine gemmini-fp32 -p 'multi-buffer{depth=3 scopes="spad"}' --print-op-generic | penstock-opt | filecheck %s

// The ring stands before the innermost loop, whose rounds are counted from 0; the accumulator is in another scope.

// CHECK:      func.func private @k
// CHECK:        scf.for %{{.*}} = %lower to %upper step %step {
// CHECK-NEXT:     %a_ring = mem.ring 3 : !mem.ring<memref<8xf32, "spad">>
// CHECK-NEXT:     scf.for %i = %lower to %upper step %step {
// CHECK-NEXT:       %distance = arith.subi %i, %lower : index
// CHECK-NEXT:       %round = arith.divui %distance, %step : index
// CHECK-NEXT:       %a = mem.slot %a_ring[%round] : !mem.ring<memref<8xf32, "spad">>
// CHECK-NEXT:       mem.copy %x[%i] to %a
// CHECK-NEXT:       %c = mem.buffer : memref<8xf32, "acc">
// CHECK-NEXT:       mem.copy %x[%i] to %c
func.func private @k(%x: memref<64xf32>) attributes {device = @gemmini_fp32} {
  %lower = arith.constant 8 : index
  %upper = arith.constant 64 : index
  %step = arith.constant 8 : index
  scf.for %j = %lower to %upper step %step {
    scf.for %i = %lower to %upper step %step {
      %a = mem.buffer : memref<8xf32, "spad">
      mem.copy %x[%i] to %a : memref<64xf32> to memref<8xf32, "spad">
      %c = mem.buffer : memref<8xf32, "acc">
      mem.copy %x[%i] to %c : memref<64xf32> to memref<8xf32, "acc">
    }
  }
  func.return
}
