// A machine with every kind of part: the examples of docs/reference/dialects/machine.md.
// Tests print this file as it is.

machine.target @tiny named "tiny-1" frequency 200 sources {sheet = "data sheet"} origin {frequency = "assumed"} {
  machine.scope @inp size 4096 granule 16 dtypes [i8]
  machine.scope @acc size 8192 granule 64 banks 2 dtypes [i32, f32] rate [64, 1] parent @dram origin {all = "sheet"}
  machine.scope @reg size 256 granule 4 dtypes [f32] parent @acc
  machine.bus @ext rate [64, 3] origin {rate = ["sheet", "32e9 / 1.5e9"]}
  machine.memory @flash address 0 size 65536 holds ["code", "weights"] origin {all = "sheet"}
  machine.memory @sram address 536870912 size 32768 holds ["data"]
  machine.processor @core ops [1, 1] rate [8, 1] origin {all = "assumed"}
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
      %zero = arith.constant 0.000000e+00 : f32
      linalg.yield %zero : f32
    }
  }
  machine.queue from @load to @compute capacity 255 on_full "error" initial 0 push "push_compute();" pop "pop_load();" origin {all = "sheet"}
  machine.queue from @compute to @load capacity 2 on_full "block"
  machine.energy read {dram = array<i64: 1, 4>, inp = array<i64: 1, 4>, acc = array<i64: 1, 4>, reg = array<i64: 1, 4>} write {dram = array<i64: 1, 4>, inp = array<i64: 1, 4>, acc = array<i64: 1, 4>, reg = array<i64: 1, 4>} transfer {ext = array<i64: 1, 4>, spill = array<i64: 1, 4>} add {i32 = array<i64: 1, 4>, f32 = array<i64: 1, 4>} multiply {i32 = array<i64: 1, 4>, f32 = array<i64: 1, 4>} special {i32 = array<i64: 1, 4>, f32 = array<i64: 1, 4>} leakage [25, 1] origin {all = "assumed"}
  machine.state @stride emit "set_stride({copy}, {stride});" copies 2 origin {all = "sheet"}
  machine.code order "barrier" barrier "wait_for_all();" begin "reset();" headers ["tiny.h"] origin {all = "sheet"}
}
