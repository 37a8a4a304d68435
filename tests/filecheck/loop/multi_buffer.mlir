// RUN: penstock-opt %s --machine gemmini-fp32 -p 'multi-buffer{depth=3 scopes="spad"}' | filecheck %s
// RUN: penstock-opt %s --machine gemmini-fp32 -p 'multi-buffer{depth=3 scopes="spad"}' --print-op-generic | penstock-opt | filecheck %s

// The ring stands before the nest, whose rounds are counted from 0, one loop after the other; the accumulator is in
// another scope.

// CHECK:      func.func private @k
// CHECK:        %a_ring = mem.ring 3 : !mem.ring<memref<8xf32, "spad">>
// CHECK-NEXT:   scf.for %j = %lower to %upper step %step {
// CHECK-NEXT:     scf.for %i = %lower to %upper step %step {
// CHECK-NEXT:       [[OUTER:%.*]] = arith.subi %j, %lower : index
// CHECK-NEXT:       [[ROUND:%.*]] = arith.divui [[OUTER]], %step : index
// CHECK-NEXT:       [[INNER:%.*]] = arith.subi %i, %lower : index
// CHECK-NEXT:       [[WITHIN:%.*]] = arith.divui [[INNER]], %step : index
// CHECK-NEXT:       [[ROUNDS:%.*]] = arith.constant 7 : index
// CHECK-NEXT:       [[BEFORE:%.*]] = arith.muli [[ROUND]], [[ROUNDS]] : index
// CHECK-NEXT:       [[NUMBER:%.*]] = arith.addi [[BEFORE]], [[WITHIN]] : index
// CHECK-NEXT:       %a = mem.slot %a_ring[[[NUMBER]]] : !mem.ring<memref<8xf32, "spad">>
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
