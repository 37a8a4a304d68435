# SPDX-License-Identifier: Apache-2.0
"""The programs that bugs are planted in: their text, machine and pipeline."""

from __future__ import annotations

DENSE = """
func.func @main(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>, %b: tensor<16xf32>, %v: tensor<16x16xf32>)
    -> tensor<16x16xf32> {
  %p = graph.matmul %x, %w : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32> loc("first")
  %s = graph.add %p, %b : (tensor<16x16xf32>, tensor<16xf32>) -> tensor<16x16xf32> loc("bias")
  %r = graph.relu %s : tensor<16x16xf32> loc("clamp")
  %q = graph.matmul %r, %v : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32> loc("second")
  %d = graph.sub %q, %b : (tensor<16x16xf32>, tensor<16xf32>) -> tensor<16x16xf32> loc("less")
  func.return %d : tensor<16x16xf32>
}
"""
LOWER = "graph-fuse,graph-to-tensor,assign-devices,fuse-elementwise"
TILED = f"{LOWER},tile{{sizes=8,8,8}},licm,value-cse,value-dce,tensor-to-loop,promote,promote-levels,tensorize"
COMMANDS = "mem-plan,loop-to-accel,accel-pipeline,cse"

IMAGE = """
func.func @main(%x: tensor<1x3x6x6xf32>, %e: tensor<1x4x6x6xf32>) -> tensor<1x4x3x3xf32> {
  %w = graph.constant dense<2.0> : tensor<4x3x3x3xf32>
  %m = graph.constant dense<3.0> : tensor<4xf32>
  %one = graph.constant dense<1.0> : tensor<4xf32>
  %k = graph.constant dense<2.0> : tensor<1x4x6x6xf32>
  %c = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
      : (tensor<1x3x6x6xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32> loc("conv")
  %n = graph.batch_normalization %c, %m, %m, %m, %one epsilon 0.0
      : (tensor<1x4x6x6xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4x6x6xf32>
      loc("norm")
  %kk = graph.mul %k, %k : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> loc("constants")
  %ek = graph.mul %e, %kk : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> loc("extra")
  %r = graph.sub %n, %ek : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32> loc("rest")
  %id = graph.identity %r : tensor<1x4x6x6xf32> loc("same")
  %y = graph.max_pool %id kernel_shape [3, 3] strides [2, 2] pads [1, 1, 0, 0] dilations [1, 1]
      : tensor<1x4x6x6xf32> -> tensor<1x4x3x3xf32> loc("pool")
  func.return %y : tensor<1x4x3x3xf32>
}
"""
HOST = (
    "integer-arithmetic,simplify,fold-batch-norm,fold-scale,reorder-matmuls,fold-constants,value-cse,value-dce,"
    "transpose-operands,combine-matmuls,fuse-attention,layout,graph-fuse,graph-to-tensor,fuse-elementwise,"
    "insert-copies,tensor-to-loop,mem-plan"
)

PRODUCTS = """
func.func @main(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>, %v: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>) {
  %w = graph.constant dense<2.0> : tensor<4x4xf32>
  %u = graph.constant dense<3.0> : tensor<4x4xf32>
  %two = graph.constant dense<5.0> : tensor<4xf32>
  %g = graph.gemm %x, %y trans_b true : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("gemm")
  %xy = graph.matmul %g, %y : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("matrix")
  %r = graph.matmul %xy, %v : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4xf32> loc("vector")
  %g3 = graph.reshape %g : tensor<4x4xf32> -> tensor<1x4x4xf32> loc("shaped")
  %p = graph.matmul %g3, %w : (tensor<1x4x4xf32>, tensor<4x4xf32>) -> tensor<1x4x4xf32> loc("left")
  %ps = graph.mul %p, %two : (tensor<1x4x4xf32>, tensor<4xf32>) -> tensor<1x4x4xf32> loc("scaled")
  %q = graph.matmul %g3, %u : (tensor<1x4x4xf32>, tensor<4x4xf32>) -> tensor<1x4x4xf32> loc("right")
  func.return %r, %ps, %q : tensor<4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
}
"""

ATTENTION = """
func.func @main(%q: tensor<1x2x4x4xf32>, %k: tensor<1x2x4x4xf32>, %v: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %two = graph.constant dense<2.0> : tensor<f32>
  %t = graph.transpose %k perm [0, 1, 3, 2] : tensor<1x2x4x4xf32> -> tensor<1x2x4x4xf32> loc("turned")
  %s = graph.matmul %q, %t : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> loc("scores")
  %d = graph.div %s, %two : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4x4xf32> loc("scaled")
  %p = graph.softmax %d axis 3 : tensor<1x2x4x4xf32> -> tensor<1x2x4x4xf32> loc("weights")
  %y = graph.matmul %p, %v : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> loc("attention")
  func.return %y : tensor<1x2x4x4xf32>
}
"""

INTEGERS = """
func.func @main(%x: tensor<4x8xi8>) -> tensor<4x4xi8> {
  %w = graph.constant dense<3> : tensor<8x4xi8>
  %xs = graph.constant dense<5.000000e-01> : tensor<f32>
  %ws = graph.constant dense<2.500000e-01> : tensor<f32>
  %ys = graph.constant dense<1.000000e+00> : tensor<f32>
  %yz = graph.constant dense<-8> : tensor<i8>
  %a = graph.dequantize_linear %x, %xs : (tensor<4x8xi8>, tensor<f32>) -> tensor<4x8xf32> loc("input")
  %b = graph.dequantize_linear %w, %ws : (tensor<8x4xi8>, tensor<f32>) -> tensor<8x4xf32> loc("weight")
  %c = graph.matmul %a, %b : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32> loc("product")
  %y = graph.quantize_linear %c, %ys, %yz : (tensor<4x4xf32>, tensor<f32>, tensor<i8>) -> tensor<4x4xi8> loc("output")
  func.return %y : tensor<4x4xi8>
}
"""

SCALE = """
#rows = affine_map<(m, n) -> (m, n)>
func.func @main(%x: memref<6x16x16xi32> {graph.name = "x"}, %y: memref<6x16x16xi8> {graph.output = "y"}) {
  func.call @shift(%x, %y) : (memref<6x16x16xi32>, memref<6x16x16xi8>) -> ()
  func.return
}
func.func private @shift(%x: memref<6x16x16xi32>, %y: memref<6x16x16xi8>) attributes {device = @vta_pynq} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %end = arith.constant 6 : index
  %free = accel.ready
  %done = scf.for %i = %zero to %end step %one iter_args(%before = %free) -> (!accel.token) {
    %acc = mem.buffer at 0 : memref<16x16xi32, "acc">
    %from = memref.subview %x[%i, 0, 0] [1, 16, 16] [1, 1, 1]
      : memref<6x16x16xi32> to memref<16x16xi32, strided<[16, 1], offset: ?>>
    %to = memref.subview %y[%i, 0, 0] [1, 16, 16] [1, 1, 1]
      : memref<6x16x16xi8> to memref<16x16xi8, strided<[16, 1], offset: ?>>
    %t = accel.dma %from to %acc on "load_acc" after (%before)
      : memref<16x16xi32, strided<[16, 1], offset: ?>> to memref<16x16xi32, "acc"> loc("in")
    %u = accel.exec @alu_shr_imm imm [1 : i32] extents [16, 16] maps [#rows] (%acc) after (%t)
      : memref<16x16xi32, "acc"> loc("shift")
    %v = accel.exec @store_narrow extents [16, 16] maps [#rows, #rows] (%acc, %to) after (%u)
      : memref<16x16xi32, "acc">, memref<16x16xi8, strided<[16, 1], offset: ?>> loc("out")
    scf.yield %v : !accel.token
  }
  accel.barrier
  func.return
}
"""

KEPT = """
machine.target @one_scope frequency 100 {
  machine.scope @spad size 1024 granule 16 dtypes [f32]
  machine.unit @load
  machine.dma @fetch unit @load from [@dram] to [@spad] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @put unit @load from [@spad] to [@dram] dims 2 latency 1 row_overhead 0 outstanding 1
}
func.func @main(%x: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}) {
  %t = memref.alloc() : memref<16xf32> loc("between")
  func.call @k(%x, %t) : (memref<16xf32>, memref<16xf32>) -> () loc("one")
  func.call @k(%t, %y) : (memref<16xf32>, memref<16xf32>) -> () loc("other")
  func.return
}
func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @one_scope} {
  %tile = mem.buffer : memref<16xf32, "spad">
  mem.copy %x to %tile : memref<16xf32> to memref<16xf32, "spad"> loc("fetch")
  mem.copy %tile to %y : memref<16xf32, "spad"> to memref<16xf32> loc("put")
  func.return
}
"""

LEVELS = """
machine.target @two_levels frequency 100 {
  machine.scope @sram size 1024 granule 16 dtypes [f32] parent @dram
  machine.scope @core size 128 granule 16 dtypes [f32] parent @sram
  machine.unit @load
  machine.dma @fetch unit @load from [@dram] to [@sram] dims 2 latency 10 row_overhead 1 outstanding 1
  machine.dma @feed unit @load from [@sram] to [@core] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @drain unit @load from [@core] to [@dram] dims 2 latency 1 row_overhead 0 outstanding 1
}
func.func @main(%x: memref<64xf32> {graph.name = "x"}, %y: memref<4x64xf32> {graph.output = "y"}) {
  func.call @k(%x, %y) : (memref<64xf32>, memref<4x64xf32>) -> () loc("call")
  func.return
}
func.func private @k(%x: memref<64xf32>, %y: memref<4x64xf32>) attributes {device = @two_levels} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %many = arith.constant 4 : index
  %end = arith.constant 64 : index
  %tile = arith.constant 16 : index
  scf.for %again = %zero to %many step %one {
    scf.for %i = %zero to %end step %tile {
      %a = mem.buffer : memref<16xf32, "core">
      mem.copy %x[%i] to %a : memref<64xf32> to memref<16xf32, "core"> loc("fetch")
      %to = memref.subview %y[%again, %i] [1, 16] [1, 1] : memref<4x64xf32> to memref<16xf32, strided<[1], offset: ?>>
      mem.copy %a to %to : memref<16xf32, "core"> to memref<16xf32, strided<[1], offset: ?>> loc("put")
    }
  }
  func.return
}
"""

HALF = """
func.func @main(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %w = graph.constant dense<2.0> : tensor<4x4xf32>
  %h = graph.sub %x, %y : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("less")
  %p = graph.matmul %h, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("product")
  %r = graph.matmul %p, %y : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("again")
  func.return %r : tensor<4x4xf32>
}
"""

OVERWRITTEN = """
func.func @main(%x: tensor<4x8xf32> {graph.name = "x"}) -> tensor<4x8xf32> {
  %y = func.call @k(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32> loc("call")
  func.return %y : tensor<4x8xf32>
}
func.func private @k(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<4x8xf32>
  %twice = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %old: f32):
    %sum = arith.addf %a, %a : f32
    linalg.yield %sum : f32
  } -> tensor<4x8xf32> loc("twice")
  %more = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} outs(%twice : tensor<4x8xf32>) {
  ^bb0(%old: f32):
    %sum = arith.mulf %old, %old : f32
    linalg.yield %sum : f32
  } -> tensor<4x8xf32> loc("square")
  %both = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%twice : tensor<4x8xf32>) outs(%more : tensor<4x8xf32>) {
  ^bb0(%a: f32, %old: f32):
    %sum = arith.subf %old, %a : f32
    linalg.yield %sum : f32
  } -> tensor<4x8xf32> loc("both")
  func.return %both : tensor<4x8xf32>
}
"""

PROGRAMS: dict[str, tuple[str, str | None, str]] = {
    "dense": (DENSE, "gemmini-fp32", f"{TILED},multi-buffer{{depth=2}},{COMMANDS}"),
    "resident": (DENSE, "gemmini-fp32", f"{TILED},mem-promote,{COMMANDS}"),
    "image": (IMAGE, None, HOST),
    "products": (PRODUCTS, None, HOST),
    "attention": (ATTENTION, None, "fuse-attention,graph-fuse,graph-to-tensor"),
    "integers": (INTEGERS, None, "integer-arithmetic,graph-fuse,graph-to-tensor"),
    "half": (HALF, None, 'graph-fuse,storage-type{type="f16"},graph-to-tensor'),
    "overwritten": (OVERWRITTEN, None, "insert-copies,tensor-to-loop,mem-plan"),
    "levels": (LEVELS, None, "promote-levels,mem-plan,loop-to-accel,accel-pipeline"),
    "kept": (KEPT, None, "mem-promote{strategy=toplib},mem-plan,loop-to-accel,accel-pipeline"),
    "scale": (SCALE, "vta-pynq", "accel-virtual-threads,accel-assign-queues"),
}
"""Text, machine, and the pipeline that is run."""
