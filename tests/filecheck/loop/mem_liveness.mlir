// RUN: penstock-opt %s -p mem-liveness 2>&1 | filecheck %s

// The next round reads what this one writes to %a; what it writes to %b, it overwrites before it reads it.
// CHECK:      remark: %a : memref<16xf32> is alive in steps [6, 9) and [10, 12)
// CHECK-NEXT: remark: %b : memref<16xf32> is alive in steps [9, 11)
// CHECK:      %a = memref.alloc() {mem.live = [array<i64: 6, 9>, array<i64: 10, 12>]} : memref<16xf32>
// CHECK-NEXT: %b = memref.alloc() {mem.live = [array<i64: 9, 11>]} : memref<16xf32>
func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %a = memref.alloc() : memref<16xf32>
  %b = memref.alloc() : memref<16xf32>
  %unused = arith.constant 2 : index
  mem.copy %x to %a : memref<16xf32> to memref<16xf32>
  scf.for %i = %c0 to %n step %c1 {
    mem.copy %a to %y : memref<16xf32> to memref<16xf32>
    mem.copy %y to %b : memref<16xf32> to memref<16xf32>
    mem.copy %b to %a : memref<16xf32> to memref<16xf32>
  }
  func.return
}
