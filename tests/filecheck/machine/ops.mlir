// RUN: penstock-opt %s | penstock-opt | filecheck %s
// RUN: penstock-opt %s --print-op-generic | filecheck %s --check-prefix=GENERIC
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

machine.target @tiny named "tiny-1" frequency 200 sources {sheet = "data sheet"} origin {frequency = "assumed"} {
  machine.scope @inp size 4096 granule 16 dtypes [i8]
  machine.scope @acc size 8192 granule 64 banks 2 dtypes [i32, f32] rate [64, 1] parent @dram origin {all = "sheet"}
  machine.scope @reg size 256 granule 4 dtypes [f32] parent @acc
  machine.bus @ext rate [64, 3] origin {rate = ["sheet", "32e9 / 1.5e9"]}
  machine.unit @load
  machine.unit @compute origin {all = "assumed"}
  machine.dma @fetch unit @load from [@dram] to [@inp, @acc] bus @ext dims 2 max_count [65535, 15] max_stride 100 pad_max 0 align 4 latency 0 row_overhead 0 outstanding 1
  machine.dma @spill unit @load from [@acc] to [@dram] dims 1 latency 8 row_overhead 1 outstanding 2 convert {from = i32, to = i8, rule = "truncate"}
  machine.intrinsic @add unit @compute operands [x, imm, y] shape {n = 16} ii 1 depth 0 imm_bits 16 {
  ^bb0(%x: memref<?xi32, "acc">, %imm: i32, %y: memref<?xi32, "acc">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x, %imm : memref<?xi32, "acc">, i32) outs(%y : memref<?xi32, "acc">) {
    ^bb0(%a: i32, %b: i32, %c: i32):
      %s = arith.addi %a, %b : i32
      linalg.yield %s : i32
    }
  }
  machine.intrinsic @clear dma @fetch operands [dst granule] shape {m = [1, 4], n = ?} {
  ^bb0(%dst: memref<?x?xf32, strided<[?, 1]>, "acc">):
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"], doc = "dst[m,n] = 0"} outs(%dst : memref<?x?xf32, strided<[?, 1]>, "acc">) {
    ^bb0(%c: f32):
      %zero = arith.constant 0.0 : f32
      linalg.yield %zero : f32
    }
  }
  machine.queue from @load to @compute capacity 255 on_full "error" initial 0 origin {all = "sheet"}
  machine.queue from @compute to @load capacity 2 on_full "block"
}

// CHECK:      machine.target @tiny named "tiny-1" frequency 200 sources {sheet = "data sheet"} origin {frequency = "assumed"} {
// CHECK-NEXT:   machine.scope @inp size 4096 granule 16 dtypes [i8]
// CHECK-NEXT:   machine.scope @acc size 8192 granule 64 banks 2 dtypes [i32, f32] rate [64, 1] parent @dram origin {all = "sheet"}
// CHECK-NEXT:   machine.scope @reg size 256 granule 4 dtypes [f32] parent @acc
// CHECK-NEXT:   machine.bus @ext rate [64, 3] origin {rate = ["sheet", "32e9 / 1.5e9"]}
// CHECK-NEXT:   machine.unit @load
// CHECK-NEXT:   machine.unit @compute origin {all = "assumed"}
// CHECK-NEXT:   machine.dma @fetch unit @load from [@dram] to [@inp, @acc] bus @ext dims 2 max_count [65535, 15] max_stride 100 pad_max 0 align 4 latency 0 row_overhead 0 outstanding 1
// CHECK-NEXT:   machine.dma @spill unit @load from [@acc] to [@dram] dims 1 latency 8 row_overhead 1 outstanding 2 convert {from = i32, to = i8, rule = "truncate"}
// CHECK-NEXT:   machine.intrinsic @add unit @compute operands [x, imm, y] shape {n = 16} ii 1 depth 0 imm_bits 16 {
// CHECK-NEXT:   ^bb0(%x: memref<?xi32, "acc">, %imm: i32, %y: memref<?xi32, "acc">):
// CHECK-NEXT:     linalg.generic
// CHECK:        machine.intrinsic @clear dma @fetch operands [dst granule] shape {m = [1, 4], n = ?} {
// CHECK-NEXT:   ^bb0(%dst: memref<?x?xf32, strided<[?, 1]>, "acc">):
// CHECK:        machine.queue from @load to @compute capacity 255 on_full "error" initial 0 origin {all = "sheet"}
// CHECK-NEXT:   machine.queue from @compute to @load capacity 2 on_full "block"

// GENERIC:      "machine.target"() <{sym_name = "tiny", machine_name = "tiny-1", frequency = 200 : i64, sources = {sheet = "data sheet"}, origin = {frequency = "assumed"}}> ({
// GENERIC-NEXT:   "machine.scope"() <{sym_name = "inp", size = 4096 : i64, granule = 16 : i64, dtypes = [i8]}> : () -> ()
// GENERIC:        "machine.dma"() <{sym_name = "spill", unit = @load, from = [@acc], to = [@dram], dims = 1 : i64, latency = 8 : i64, row_overhead = 1 : i64, outstanding = 2 : i64, convert = {from = i32, to = i8, rule = "truncate"}}> : () -> ()
// GENERIC:        "machine.intrinsic"() <{sym_name = "clear", dma = @fetch, operand_names = ["dst"], strides = ["granule"], dims = ["m", "n"], shape = [array<i64: 1, 4>, array<i64>]}> ({
// GENERIC:        "machine.queue"() <{from = @compute, to = @load, capacity = 2 : i64, on_full = "block"}> : () -> ()
