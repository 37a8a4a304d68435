// RUN: penstock-opt %s -p mem-plan | filecheck %s
// RUN: penstock-opt %s -p mem-plan --print-op-generic | penstock-opt | filecheck %s

// The tile of x is alive in the inner loop only, as the tile of w is; the accumulator, from outside that loop,
// throughout it. Off chip, the kernel's own buffer lies beside what is alive at its calls.

machine.target @small frequency 100 {
  machine.scope @spad size 1024 granule 16 dtypes [f32]
  machine.scope @acc size 512 granule 64 dtypes [f32]
}

// CHECK:      func.func private @kernel
// CHECK-NEXT:   %t = mem.buffer at 128 : memref<16xf32>
// CHECK:        %a = mem.buffer at 0 : memref<4x4xf32, strided<[16, 1]>, "acc">
// CHECK:        scf.for %i = %c0 to %c4 step %c1 {
// CHECK-NEXT:     %p = mem.buffer at 0 : memref<4x4xf32, "spad">
// CHECK:          %q = mem.buffer at 64 : memref<4x4xf32, "spad">
// CHECK:        }
// CHECK:        %r = mem.buffer at 0 : memref<4x4xf32, "spad">

func.func private @kernel(%x: memref<4x4xf32>, %y: memref<4x4xf32>) attributes {device = @small} {
  %t = memref.alloc() : memref<16xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %f = memref.collapse_shape %x [[0, 1]] : memref<4x4xf32> into memref<16xf32>
  mem.copy %f to %t : memref<16xf32> to memref<16xf32>
  %a = mem.buffer : memref<4x4xf32, strided<[16, 1]>, "acc">
  mem.copy %x to %a : memref<4x4xf32> to memref<4x4xf32, strided<[16, 1]>, "acc">
  scf.for %i = %c0 to %c4 step %c1 {
    %p = mem.buffer : memref<4x4xf32, "spad">
    mem.copy %x to %p : memref<4x4xf32> to memref<4x4xf32, "spad">
    %q = mem.buffer : memref<4x4xf32, "spad">
    mem.copy %p to %q : memref<4x4xf32, "spad"> to memref<4x4xf32, "spad">
    mem.copy %q to %a : memref<4x4xf32, "spad"> to memref<4x4xf32, strided<[16, 1]>, "acc">
  }
  %r = mem.buffer : memref<4x4xf32, "spad">
  mem.copy %x to %r : memref<4x4xf32> to memref<4x4xf32, "spad">
  mem.copy %r to %y : memref<4x4xf32, "spad"> to memref<4x4xf32>
  func.return
}

// CHECK:      func.func @main
// CHECK-NEXT:   %u = mem.buffer at 0 : memref<4x4xf32>
// CHECK-NEXT:   func.call @kernel(%x, %u)
// CHECK-NEXT:   %v = mem.buffer at 64 : memref<4x4xf32>
// CHECK-NEXT:   func.call @kernel(%u, %v)
func.func @main(%x: memref<4x4xf32>, %y: memref<4x4xf32>) {
  %u = memref.alloc() : memref<4x4xf32>
  func.call @kernel(%x, %u) : (memref<4x4xf32>, memref<4x4xf32>) -> ()
  %v = memref.alloc() : memref<4x4xf32>
  func.call @kernel(%u, %v) : (memref<4x4xf32>, memref<4x4xf32>) -> ()
  mem.copy %v to %y : memref<4x4xf32> to memref<4x4xf32>
  func.return
}
