// Small pieces of MLIR, of the dialects that Penstock shares with it, that mlir-opt 19 reads.
// -----
// memref
func.func @f(%a: memref<4x8xf32>, %n: index, %d: memref<?x?xf32>, %v: f32) -> index {
  %c0 = arith.constant 0 : index
  %0 = memref.alloc() : memref<4x8xf32, "spad">
  %1 = memref.alloc(%n) {alignment = 64 : i64} : memref<?x8xf32>
  %2 = memref.alloca() : memref<4xi8>
  %3 = memref.load %a[%c0, %n] : memref<4x8xf32>
  memref.store %3, %1[%c0, %n] : memref<?x8xf32>
  memref.copy %a, %0 : memref<4x8xf32> to memref<4x8xf32, "spad">
  %4 = memref.dim %d, %c0 : memref<?x?xf32>
  memref.dealloc %1 : memref<?x8xf32>
  return %4 : index
}
// -----
// views
func.func @f(%a: memref<4x8xf32>, %i: index, %b: memref<32xf32>, %c: memref<2x2x8xf32>, %u: memref<1x4x4xf32, strided<[16, 4, 1], offset: ?>>) {
  %0 = memref.subview %a[1, 1] [2, 4] [1, 2] : memref<4x8xf32> to memref<2x4xf32, strided<[8, 2], offset: 9>>
  %1 = memref.subview %a[%i, 0] [1, 8] [1, 1] : memref<4x8xf32> to memref<8xf32, strided<[1], offset: ?>>
  %2 = memref.subview %a[%i, %i] [%i, 4] [1, %i] : memref<4x8xf32> to memref<?x4xf32, strided<[8, ?], offset: ?>>
  %3 = memref.expand_shape %b [[0, 1]] output_shape [4, 8] : memref<32xf32> into memref<4x8xf32>
  %4 = memref.collapse_shape %c [[0, 1], [2]] : memref<2x2x8xf32> into memref<4x8xf32>
  %5 = memref.cast %a : memref<4x8xf32> to memref<?x8xf32>
  %6 = memref.reinterpret_cast %a to offset: [%i], sizes: [2, 2], strides: [%i, 1] : memref<4x8xf32> to memref<2x2xf32, strided<[?, 1], offset: ?>>
  %7 = memref.memory_space_cast %a : memref<4x8xf32> to memref<4x8xf32, 1>
  return
}
// -----
// globals
memref.global "private" constant @c : memref<4xf32> = dense<[0xFF800000, 1.5, -0.0, 0x7FC00001]>
memref.global "private" @u : memref<2x2xi32> = uninitialized
func.func @f() {
  %0 = memref.get_global @c : memref<4xf32>
  %1 = memref.get_global @u : memref<2x2xi32>
  return
}
// -----
// loops
func.func @f(%a: memref<16xf32>, %n: index, %p: i1) -> (f32, f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %z = arith.constant 0.0 : f32
  %0:2 = scf.for %i = %c0 to %n step %c1 iter_args(%s = %z, %t = %z) -> (f32, f32) {
    %x = memref.load %a[%i] : memref<16xf32>
    %y = arith.addf %s, %x fastmath<fast> : f32
    scf.yield %y, %s : f32, f32
  }
  scf.for %i = %c0 to %n step %c1 {
    scf.if %p {
      memref.store %z, %a[%i] : memref<16xf32>
    }
  }
  %1 = scf.if %p -> (f32) {
    scf.yield %0#0 : f32
  } else {
    scf.yield %0#1 : f32
  }
  return %1, %0#1 : f32, f32
}
// -----
// while
func.func @f(%n: index) -> index {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %0 = scf.while (%i = %c0) : (index) -> index {
    %p = arith.cmpi slt, %i, %n : index
    scf.condition(%p) %i : index
  } do {
  ^bb0(%i: index):
    %j = arith.addi %i, %c1 : index
    scf.yield %j : index
  }
  return %0 : index
}
// -----
// parallel
func.func @f(%a: memref<16xf32>, %n: index) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %z = arith.constant 0.0 : f32
  %0 = scf.parallel (%i, %j) = (%c0, %c0) to (%n, %n) step (%c1, %c1) init (%z) -> f32 {
    %x = memref.load %a[%i] : memref<16xf32>
    scf.reduce(%x : f32) {
    ^bb0(%l: f32, %r: f32):
      %s = arith.addf %l, %r : f32
      scf.reduce.return %s : f32
    }
  }
  return %0 : f32
}
// -----
// forall
func.func @f(%m: memref<4x8xf32, "spad">, %n: index, %t: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %c = arith.constant 1.0 : f32
  scf.forall (%i, %j) in (4, 8) {
    memref.store %c, %m[%i, %j] : memref<4x8xf32, "spad">
  } {mapping = [#gpu.thread<x>, #gpu.thread<y>]}
  scf.forall (%i, %j) = (0, 1) to (%n, 8) step (2, 3) {
    memref.store %c, %m[%i, %j] : memref<4x8xf32, "spad">
    gpu.barrier
    scf.forall.in_parallel {}
  } {foo = 3}
  scf.forall (%i) in (%n) {
  } {mapping = [#gpu.warp<linear_dim_0>]}
  scf.forall (%i) in (2) {
    gpu.barrier
  } {mapping = [#gpu.warpgroup<linear_dim_9>]}
  scf.forall (%i) in (2) {
  } {mapping = [#gpu.memory_space<workgroup>]}
  scf.forall () in () {
  }
  %r = scf.forall (%i) in (4) shared_outs(%o = %t) -> (tensor<4x8xf32>) {
    %s = tensor.extract_slice %o[%i, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%i, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<4x8xf32>
}
// -----
// tensor
func.func @f(%t: tensor<4x8xf32>, %i: index, %v: f32, %d: tensor<?x8xf32>, %u: tensor<2x4xf32>) -> tensor<4x8xf32> {
  %0 = tensor.empty() : tensor<4x8xf32>
  %1 = tensor.extract_slice %t[%i, 0] [2, 4] [1, 2] : tensor<4x8xf32> to tensor<2x4xf32>
  %2 = tensor.insert_slice %u into %t[0, %i] [2, 4] [1, 1] : tensor<2x4xf32> into tensor<4x8xf32>
  %3 = tensor.extract %t[%i, %i] : tensor<4x8xf32>
  %4 = tensor.insert %v into %t[%i, %i] : tensor<4x8xf32>
  %5 = tensor.collapse_shape %t [[0, 1]] : tensor<4x8xf32> into tensor<32xf32>
  %6 = tensor.expand_shape %5 [[0, 1]] output_shape [4, 8] : tensor<32xf32> into tensor<4x8xf32>
  %7 = tensor.cast %t : tensor<4x8xf32> to tensor<?x8xf32>
  %8 = tensor.dim %d, %i : tensor<?x8xf32>
  %9 = tensor.empty(%8) : tensor<?x4xf32>
  %10 = tensor.from_elements %v, %v : tensor<2xf32>
  %11 = tensor.splat %v : tensor<4x8xf32>
  %12 = tensor.pad %t low[0, 1] high[%i, 1] {
  ^bb0(%a: index, %b: index):
    tensor.yield %v : f32
  } : tensor<4x8xf32> to tensor<?x10xf32>
  %13 = tensor.concat dim(0) %u, %u : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
  %14 = arith.constant dense<[4, 8]> : tensor<2xindex>
  %15 = tensor.reshape %5(%14) : (tensor<32xf32>, tensor<2xindex>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}
// -----
// affine
#m = affine_map<(d0)[s0] -> (d0 floordiv s0, d0 * s0 mod 7)>
func.func @f(%a: memref<64x64xf32>, %n: index) {
  %0 = affine.apply affine_map<(d0)[s0] -> (d0 ceildiv s0 + 3)> (%n)[%n]
  %1 = affine.min affine_map<(d0) -> (d0 - 1, 16)> (%n)
  affine.for %i = 0 to 64 step 2 {
    affine.for %j = affine_map<(d0) -> (d0)>(%i) to %n {
      %x = affine.load %a[%i + 1, %j floordiv 2] : memref<64x64xf32>
      affine.store %x, %a[%i, 63] : memref<64x64xf32>
    }
  }
  return
}
// -----
// affine_max
func.func @f(%n: index) -> index {
  %0 = affine.max affine_map<(d0) -> (d0 - 1, 16)> (%n)
  return %0 : index
}
// -----
// affine_reduction
func.func @f(%a: memref<64xf32>) -> f32 {
  %z = arith.constant 0.0 : f32
  %0 = affine.for %i = 0 to 64 iter_args(%s = %z) -> (f32) {
    %x = affine.load %a[%i] : memref<64xf32>
    %y = arith.addf %s, %x : f32
    affine.yield %y : f32
  }
  return %0 : f32
}
// -----
// affine_if
#s = affine_set<(d0)[s0] : (d0 - 10 >= 0, -d0 + s0 - 1 >= 0, d0 mod 2 == 0)>
func.func @f(%i: index, %n: index, %a: memref<64xf32>, %v: f32) -> f32 {
  affine.if #s(%i)[%n] {
    affine.store %v, %a[%i] : memref<64xf32>
  } else {
    affine.store %v, %a[0] : memref<64xf32>
  }
  %0 = affine.if #s(%i)[%n] -> f32 {
    affine.yield %v : f32
  } else {
    %x = affine.load %a[%i] : memref<64xf32>
    affine.yield %x : f32
  }
  return %0 : f32
}
// -----
// affine_parallel
func.func @f(%a: memref<64x64xf32>, %n: index) -> f32 {
  %0 = affine.parallel (%i, %j) = (0, 1) to (64, min(%n, 32)) step (1, 2) reduce ("addf") -> (f32) {
    %x = affine.load %a[%i, %j] : memref<64x64xf32>
    affine.yield %x : f32
  }
  return %0 : f32
}
// -----
// linalg_generic
#a = affine_map<(i, k) -> (i, k)>
#o = affine_map<(i, k) -> (i)>
#s = affine_map<(i, k) -> ()>
func.func @f(%x: tensor<8x16xf32>, %v: tensor<8xf32>, %w: tensor<8xf32>, %c: f32) -> (tensor<8xf32>, tensor<8xf32>) {
  %0:2 = linalg.generic {indexing_maps = [#a, #s, #o, #o], iterator_types = ["parallel", "reduction"], doc = "two", library_call = "both"} ins(%x, %c : tensor<8x16xf32>, f32) outs(%v, %w : tensor<8xf32>, tensor<8xf32>) attrs = {tag} {
  ^bb0(%p: f32, %q: f32, %j: f32, %k: f32):
    %i = linalg.index 1 : index
    %s = arith.addf %p, %j : f32
    linalg.yield %s, %p : f32, f32
  } -> (tensor<8xf32>, tensor<8xf32>)
  %1 = linalg.generic {indexing_maps = [#a, #o], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<8x16xf32>) outs(%v : tensor<8xf32>) {
  ^bb0(%p: f32, %j: f32):
    linalg.yield %j : f32
  } -> tensor<8xf32>
  return %0#1, %1 : tensor<8xf32>, tensor<8xf32>
}
// -----
// linalg_memref
func.func @f(%x: memref<8x16xf32, strided<[32, 1], offset: ?>>, %y: memref<16xf32>, %n: memref<?xf32>) {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>], iterator_types = ["reduction", "parallel"]} ins(%x : memref<8x16xf32, strided<[32, 1], offset: ?>>) outs(%y : memref<16xf32>) {
  ^bb0(%p: f32, %q: f32):
    %s = arith.maximumf %p, %q : f32
    linalg.yield %s : f32
  }
  return
}
// -----
// linalg_named
func.func @f(%a: tensor<4x8xf32>, %b: tensor<8x16xf32>, %c: tensor<4x16xf32>, %z: f32) -> tensor<4x16xf32> {
  %0 = linalg.fill ins(%z : f32) outs(%c : tensor<4x16xf32>) -> tensor<4x16xf32>
  %1 = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x16xf32>) outs(%0 : tensor<4x16xf32>) -> tensor<4x16xf32>
  %2 = linalg.add ins(%1, %0 : tensor<4x16xf32>, tensor<4x16xf32>) outs(%c : tensor<4x16xf32>) -> tensor<4x16xf32>
  return %2 : tensor<4x16xf32>
}
// -----
// arith
func.func @f(%i: i32, %j: i32, %x: f32, %y: f32, %p: i1, %n: index) -> i32 {
  %0 = arith.addi %i, %j overflow<nsw> : i32
  %1 = arith.muli %i, %j : i32
  %2 = arith.divsi %i, %j : i32
  %3 = arith.cmpi sle, %i, %j : i32
  %4 = arith.select %p, %i, %j : i32
  %5 = arith.cmpf oge, %x, %y : f32
  %6 = arith.extsi %i : i32 to i64
  %7 = arith.trunci %i : i32 to i8
  %8 = arith.sitofp %i : i32 to f32
  %9 = arith.fptosi %x : f32 to i32
  %10 = arith.extf %x : f32 to f64
  %11 = arith.truncf %x : f32 to bf16
  %12 = arith.index_cast %n : index to i32
  %13 = arith.bitcast %x : f32 to i32
  %14 = arith.maximumf %x, %y : f32
  %15 = arith.minnumf %x, %y : f32
  %16 = arith.negf %x : f32
  %17 = arith.remf %x, %y : f32
  %18 = arith.shrui %i, %j : i32
  %19 = arith.xori %i, %j : i32
  %20 = arith.ceildivsi %i, %j : i32
  %21 = arith.uitofp %i : i32 to f16
  %22 = arith.maxui %i, %j : i32
  %sum, %over = arith.addui_extended %i, %j : i32, i1
  return %4 : i32
}
// -----
// constants
func.func @f() {
  %0 = arith.constant true
  %1 = arith.constant -7 : i8
  %2 = arith.constant 0x7F800001 : f32
  %3 = arith.constant dense<[0xFC00, 1.0]> : tensor<2xf16>
  %4 = arith.constant dense<0xFF800000> : tensor<4x4xf32>
  %5 = arith.constant dense<[true, false]> : tensor<2xi1>
  %6 = arith.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>
  %7 = arith.constant dense<(1.0, -0.0)> : tensor<2xcomplex<f32>>
  %8 = arith.constant dense<> : tensor<0xf32>
  %9 = arith.constant 1.0e-50 : f64
  %10 = arith.constant dense<1> : vector<4xi32>
  return
}
// -----
// math
func.func @f(%x: f32, %i: i32, %t: tensor<4xf32>) -> f32 {
  %0 = math.exp %x : f32
  %1 = math.fma %x, %x, %0 : f32
  %2 = math.tanh %t : tensor<4xf32>
  %3 = math.fpowi %x, %i : f32, i32
  %4 = math.absi %i : i32
  %5 = math.ctpop %i : i32
  %6 = math.rsqrt %x fastmath<fast> : f32
  return %1 : f32
}
// -----
// vector
func.func @f(%m: memref<16xf32>, %i: index, %x: f32) -> vector<4xf32> {
  %0 = vector.load %m[%i] : memref<16xf32>, vector<4xf32>
  %1 = vector.broadcast %x : f32 to vector<4xf32>
  %2 = vector.fma %0, %1, %1 : vector<4xf32>
  vector.store %2, %m[%i] : memref<16xf32>, vector<4xf32>
  return %2 : vector<4xf32>
}
// -----
// blocks
func.func private @g(i32) -> (i32, f32)
func.func @f(%p: i1, %i: i32) -> i32 {
  cf.cond_br %p, ^bb1(%i : i32), ^bb2
^bb1(%a: i32):
  %0:2 = func.call @g(%a) : (i32) -> (i32, f32)
  cf.br ^bb3(%0#0 : i32)
^bb2:
  cf.br ^bb3(%i : i32)
^bb3(%r: i32):
  return %r : i32
}
// -----
// unregistered
func.func @f(%a: index) -> index {
  %0:2 = "u.x"(%a) ({
    "u.y"(%a) : (index) -> ()
    %1 = "u.z"() {m = affine_map<(d0)[s0] -> (d0 mod s0)>, d = dense<[1.5, 0x7F800000]> : tensor<2xf32>, "a b" = unit, n = [1, 2.0, "s", @f]} : () -> f32
    "u.end"(%1)[^bb1] : (f32) -> ()
  ^bb1:
    "u.end"() : () -> ()
  }, {
  }) {p = #u.attr<1, [2]>, t = !u.type<f32, "x">} : (index) -> (index, f32)
  return %0#0 : index
}
// -----
// attributes
"u.x"() {a = array<f32: 0x7F800000, -0.0>, b = array<i8: -1, 2>, c = array<i1: true, false>, d = array<i64>, e = dense<[1.0, 2.0]> : tensor<2xbf16>, f = affine_set<(d0) : (d0 == 0)>, g = {h = 1 : i8}, i = @s::@t, j = 1 : index, k = -0.0 : f16, l = (f32) -> (), m = tensor<?x4xf32>, n = memref<4xf32, strided<[2]>, "s">, q = vector<4x[4]xi1>, r = tuple<f32, i1>, s = none, u = complex<f64>, v = strided<[?, 1], offset: 3>} : () -> ()
// -----
// functions
module @m attributes {a.b = 1 : i32} {
  func.func private @d(tensor<4xf32> {x.y = "z"}) -> (tensor<4xf32> {x.w})
  func.func @e(%arg0: tensor<4xf32> {x.y = "z"}, %arg1: i1) -> (tensor<4xf32> {x.w}, i1) attributes {q.r} {
    %0 = call @d(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0, %arg1 : tensor<4xf32>, i1
  }
  module {
  }
}
// -----
// elements
func.func @elements() {
  "u.a"() {a = sparse<[[0, 0], [1, 2]], [1, 5]> : tensor<3x4xi32>, b = sparse<0, "a"> : tensor<1x1x1x!u.str>, c = dense<["x", "y\0A"]> : tensor<2x!u.str>, d = dense<"s"> : tensor<2x2x!u.str>, e = sparse<> : tensor<4xf32>, f = sparse<[[1], [2]], [2.5, 1.5]> : vector<4xf32>, g = affine_map<(d0)[s0, s1] -> (-d0, -(d0 + s0) * 2, s0 * s1)>} : () -> ()
  return
}
// -----
// shapes of arith
func.func @arith(%a: tensor<?x4xf32>, %b: vector<4xf32>, %c: tensor<4xindex>, %v: vector<[4]xi32>, %h: vector<4xf16>, %i: vector<4xi8>, %p: i1, %f: f32) {
  %0 = arith.cmpf olt, %a, %a : tensor<?x4xf32>
  %1 = arith.cmpf une, %b, %b fastmath<nnan,ninf> {u.x} : vector<4xf32>
  %2 = arith.cmpi ult, %c, %c : tensor<4xindex>
  %3 = arith.select %0, %a, %a : tensor<?x4xi1>, tensor<?x4xf32>
  %4 = arith.cmpi eq, %v, %v : vector<[4]xi32>
  %5 = arith.extf %h fastmath<contract> : vector<4xf16> to vector<4xf32>
  %6 = arith.truncf %5 toward_zero fastmath<nnan> : vector<4xf32> to vector<4xf16>
  %7 = arith.extsi %i : vector<4xi8> to vector<4xi32>
  %8 = arith.select %p, %a, %a : tensor<?x4xf32>
  %9 = arith.truncf %f : f32 to bf16
  %10 = arith.index_cast %7 : vector<4xi32> to vector<4xindex>
  %11 = arith.fptosi %b : vector<4xf32> to vector<4xi8>
  return
}
// -----
// shapes of tensor
func.func @tensor(%t: tensor<?x8xf32>, %s: tensor<4x8xf32>, %f: tensor<f32>, %n: index, %v: f32) {
  %0 = tensor.pad %t low[0, %n] high[%n, 2] {
  ^bb0(%i: index, %j: index):
    tensor.yield %v : f32
  } : tensor<?x8xf32> to tensor<?x16xf32>
  %1 = tensor.pad %s low[%n, 0] high[%n, 0] {
  ^bb0(%i: index, %j: index):
    tensor.yield %v : f32
  } : tensor<4x8xf32> to tensor<10x8xf32>
  %2 = tensor.expand_shape %f [] output_shape [1, 1] : tensor<f32> into tensor<1x1xf32>
  %shape = arith.constant dense<[1, 2]> : tensor<2xi32>
  %3 = tensor.reshape %t(%shape) : (tensor<?x8xf32>, tensor<2xi32>) -> tensor<1x2xf32>
  return
}
// -----
// shapes of linalg
func.func @linalg(%a: tensor<4x8xi32>, %b: tensor<8x16xi32>, %c: tensor<4x16xi32>, %x: tensor<16x32x64xf32>, %y: tensor<16x64xf32>, %i: memref<1x4x8x8xf32>, %w: memref<8x4x3x3xf32>, %o: memref<1x8x6x6xf32>) {
  %0 = linalg.matmul {cast = #linalg.type_fn<cast_unsigned>} ins(%a, %b : tensor<4x8xi32>, tensor<8x16xi32>) outs(%c : tensor<4x16xi32>) -> tensor<4x16xi32>
  %1:2 = linalg.reduce ins(%x, %x : tensor<16x32x64xf32>, tensor<16x32x64xf32>) outs(%y, %y : tensor<16x64xf32>, tensor<16x64xf32>) dimensions = [1]
    (%in: f32, %in2: f32, %out: f32, %out2: f32) {
      %2 = arith.addf %out, %in : f32
      linalg.yield %2, %in2 : f32, f32
    }
  linalg.conv_2d_nchw_fchw ins(%i, %w : memref<1x4x8x8xf32>, memref<8x4x3x3xf32>) outs(%o : memref<1x8x6x6xf32>)
  return
}
// -----
// layouts of memref
memref.global @public : memref<2xf32>
func.func @memref(%m: memref<8x16xf32, affine_map<(d0, d1)[s0] -> (d0 * 16 + d1 + s0)>>, %i: index, %u: memref<*xf32>, %A: memref<256xf32>, %B: memref<256xf32, 1>, %tag: memref<1xf32>, %z: memref<f32>) {
  %0 = memref.subview %m[%i, 0][4, 8][1, 1] : memref<8x16xf32, affine_map<(d0, d1)[s0] -> (d0 * 16 + d1 + s0)>> to memref<4x8xf32, strided<[16, 1], offset: ?>>
  %1 = memref.reinterpret_cast %u to offset: [0], sizes: [10], strides: [1] : memref<*xf32> to memref<10xf32>
  memref.copy %u, %u : memref<*xf32> to memref<*xf32>
  memref.dma_start %A[%i], %B[%i], %i, %tag[%i], %i, %i : memref<256xf32>, memref<256xf32, 1>, memref<1xf32>
  memref.dma_wait %tag[%i], %i : memref<1xf32>
  %2 = memref.expand_shape %z [] output_shape [1, 1] : memref<f32> into memref<1x1xf32>
  return
}
// -----
// buffers
func.func @buffers(%t: tensor<?x4xf32>, %m: memref<?x4xf32, strided<[?, ?], offset: ?>>, %s: memref<4xf32, "spad">) -> tensor<?x4xf32> {
  %0 = bufferization.to_tensor %m restrict writable : memref<?x4xf32, strided<[?, ?], offset: ?>>
  bufferization.materialize_in_destination %t in restrict writable %m : (tensor<?x4xf32>, memref<?x4xf32, strided<[?, ?], offset: ?>>) -> ()
  %1 = bufferization.alloc_tensor() copy(%t) {memory_space = 1 : i64} : tensor<?x4xf32>
  %2 = bufferization.to_tensor %s : memref<4xf32, "spad">
  return %0 : tensor<?x4xf32>
}

// -----

// A size that is known may be unknown to the type of a view, and a rank to that of a reshaped tensor.
"builtin.module"() ({
  "func.func"() <{function_type = (memref<?xf32>, tensor<*xf32>, tensor<?xindex>, tensor<?x16x?xf32>, tensor<2x?x?xf32>) -> (), sym_name = "unknown"}> ({
  ^bb0(%0: memref<?xf32>, %1: tensor<*xf32>, %2: tensor<?xindex>, %3: tensor<?x16x?xf32>, %4: tensor<2x?x?xf32>):
    %5 = "memref.reinterpret_cast"(%0) <{operandSegmentSizes = array<i32: 1, 0, 0, 0>, static_offsets = array<i64: 1>, static_sizes = array<i64: 10, 10>, static_strides = array<i64: 1, 1>}> : (memref<?xf32>) -> memref<10x?xf32, strided<[?, 1], offset: ?>>
    %6 = "tensor.reshape"(%1, %2) : (tensor<*xf32>, tensor<?xindex>) -> tensor<*xf32>
    %7 = "linalg.softmax"(%3, %4) <{dimension = 2 : i64}> : (tensor<?x16x?xf32>, tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()

// -----

// One group of operands has no sizes of groups.
"builtin.module"() ({
  "func.func"() <{function_type = (memref<10xf32>, memref<10xf32>) -> (), sym_name = "device"}> ({
  ^bb0(%0: memref<10xf32>, %1: memref<10xf32>):
    "gpu.memcpy"(%0, %1) : (memref<10xf32>, memref<10xf32>) -> ()
    "gpu.dealloc"(%1) : (memref<10xf32>) -> ()
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()

// -----

// Handles of one type are merged, and loops have the type of their ops.
"builtin.module"() ({
  "transform.named_sequence"() <{arg_attrs = [{transform.consume}], function_type = (!transform.any_op) -> (), sym_name = "__transform_main"}> ({
  ^bb0(%0: !transform.any_op):
    %1:2 = "transform.structured.tile_using_for"(%0) <{scalable_sizes = array<i1: false>, static_sizes = array<i64: 4>}> : (!transform.any_op) -> (!transform.any_op, !transform.op<"scf.for">)
    %2 = "transform.param.constant"() <{value = 1 : i64}> : () -> !transform.param<i64>
    %3 = "transform.merge_handles"(%2, %2) : (!transform.param<i64>, !transform.param<i64>) -> !transform.param<i64>
    "transform.yield"() : () -> ()
  }) : () -> ()
}) {transform.with_named_sequence} : () -> ()
