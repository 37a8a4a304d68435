// RUN: penstock-opt %s -p lift-cf-to-scf --split-input-file --verify-diagnostics

func.func @endless(%c: i1) {
  cf.cond_br %c, ^loop, ^end
^loop:
  // expected-error @+1 {{this loop is never left}}
  cf.br ^loop
^end:
  func.return
}

// -----

func.func @nothing_leaves() {
  cf.br ^loop
^loop:
  // expected-error @+1 {{this loop is never left}}
  cf.br ^loop
}

// -----

func.func @memref_of_one_way(%c: i1, %x: memref<4xf32>, %y: memref<2xf32>, %i: index) {
  cf.br ^loop
^loop:
  cf.cond_br %c, ^view, ^end
^view:
  // expected-error @+1 {{a value of type memref<2xf32, strided<[1], offset: ?>> is made on one way only of several that meet where it is read}}
  %v = memref.subview %x[%i] [2] [1] : memref<4xf32> to memref<2xf32, strided<[1], offset: ?>>
  cf.cond_br %c, ^loop, ^read
^read:
  mem.copy %v to %y : memref<2xf32, strided<[1], offset: ?>> to memref<2xf32>
  cf.br ^end
^end:
  func.return
}

// -----

func.func @two_ways_out(%c: i1) {
  cf.cond_br %c, ^stuck, ^end
^stuck:
  "llvm.unreachable"() : () -> ()
^end:
  // expected-error @+1 {{the function is left by func.return here, and by llvm.unreachable elsewhere}}
  func.return
}

// -----

"func.func"() <{sym_name = "again", function_type = (i1) -> ()}> ({
^start(%c: i1):
  "cf.br"()[^next] : () -> ()
^next:
  // expected-error @+1 {{branches to the entry block of its region, which must have no predecessors}}
  "cf.cond_br"(%c, %c)[^start, ^end] <{operandSegmentSizes = array<i32: 1, 1, 0>}> : (i1, i1) -> ()
^end:
  "func.return"() : () -> ()
}) : () -> ()

// -----

func.func @too_few(%x: memref<i32>) {
  // expected-error @+1 {{hands nothing to a block that takes i32}}
  cf.br ^end
^end(%k: i32):
  memref.store %k, %x[] : memref<i32>
  func.return
}

// -----

func.func @another_type(%c: i1, %x: f32, %y: i32) {
  // expected-error @+1 {{hands f32 to a block that takes i32}}
  cf.cond_br %c, ^end(%x : f32), ^end(%y : i32)
^end(%k: i32):
  func.return
}
