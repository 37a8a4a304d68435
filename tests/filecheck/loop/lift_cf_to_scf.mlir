// RUN: penstock-opt %s -p lift-cf-to-scf --split-input-file | filecheck %s

// A loop of two entries says in %next where it goes on.
// CHECK-LABEL: @irreducible
// CHECK: %next = scf.if %c -> (index)
// CHECK: %d = scf.while (%a = %n, %d_1 = %n, %next_1 = %next) : (i32, i32, index) -> i32
// CHECK: arith.cmpi eq, %next_1,
// CHECK: scf.condition(%more) %d_2 : i32
// CHECK: scf.yield %d_3, %d_3, %4 : i32, i32, index
// CHECK: func.return %d : i32
func.func @irreducible(%c: i1, %n: i32) -> i32 {
  cf.cond_br %c, ^one(%n : i32), ^two(%n : i32)
^one(%a: i32):
  %b = arith.addi %a, %n : i32
  cf.br ^two(%b : i32)
^two(%d: i32):
  %more = arith.cmpi slt, %d, %n : i32
  cf.cond_br %more, ^one(%d : i32), ^end
^end:
  func.return %d : i32
}

// -----

// CHECK-LABEL: @switch
// CHECK: %r = scf.index_switch %0 -> i32
// CHECK-NEXT: case -1 {
// CHECK-NEXT: scf.yield %b : i32
// CHECK: case 7 {
// CHECK: default {
// CHECK-NEXT: scf.yield %a : i32
func.func @switch(%n: i32, %a: i32, %b: i32) -> i32 {
  cf.switch %n : i32, [
    default: ^end(%a : i32),
    -1: ^end(%b : i32),
    7: ^seven
  ]
^seven:
  %c = arith.addi %a, %b : i32
  cf.br ^end(%c : i32)
^end(%r: i32):
  func.return %r : i32
}

// -----

// CHECK-LABEL: @several_returns
// CHECK: %0 = scf.if %c -> (i32)
// CHECK-NEXT: scf.yield %a
// CHECK: scf.yield %b
// CHECK: func.return %a, %0 : i32, i32
func.func @several_returns(%c: i1, %a: i32, %b: i32) -> (i32, i32) {
  cf.cond_br %c, ^one, ^two
^one:
  func.return %a, %a : i32, i32
^two:
  func.return %a, %b : i32, i32
}

// -----

// CHECK-LABEL: @unreachable
// CHECK-NEXT: %d = arith.constant true
// CHECK-NEXT: func.return %a : i32
func.func @unreachable(%a: i32) -> i32 {
  cf.br ^end(%a : i32)
^never(%b: i32):
  %c = arith.addi %b, %b : i32
  cf.cond_br %d, ^never(%c : i32), ^end(%c : i32)
^end(%r: i32):
  %d = arith.constant true
  func.return %r : i32
}

// -----

// CHECK-LABEL: @region
// CHECK: %r = scf.execute_region
// CHECK-NEXT: %0 = scf.if %c
// CHECK: scf.yield %0 : i32
func.func @region(%c: i1, %a: i32, %b: i32) -> i32 {
  %r = scf.execute_region -> (i32) {
    cf.cond_br %c, ^one, ^two
  ^one:
    scf.yield %a : i32
  ^two:
    scf.yield %b : i32
  }
  func.return %r : i32
}

// -----

// A view stays in the region that it is made in.
// CHECK-LABEL: @view
// CHECK: %i = scf.while (%i_1 = %zero) : (index) -> index {
// CHECK-NEXT: %row = memref.subview %x
// CHECK: %repeats, %i_2 = scf.if %more -> (i1, index) {
// CHECK-NEXT: memref.store %v, %row
// CHECK: scf.condition(%repeats) %i_2 : index
func.func @view(%x: memref<4x4xf32>, %v: f32) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %three = arith.constant 3 : index
  cf.br ^head(%zero : index)
^head(%i: index):
  %row = memref.subview %x[%i, 0] [1, 4] [1, 1] : memref<4x4xf32> to memref<4xf32, strided<[1], offset: ?>>
  %more = arith.cmpi slt, %i, %three : index
  cf.cond_br %more, ^body, ^end
^body:
  memref.store %v, %row[%i] : memref<4xf32, strided<[1], offset: ?>>
  %j = arith.addi %i, %one : index
  cf.br ^head(%j : index)
^end:
  func.return
}
