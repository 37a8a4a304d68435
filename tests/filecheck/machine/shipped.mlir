// What `penstock machines show` prints is IR: it parses, verifies, and prints as it was.
// RUN: penstock machines show gemmini-fp32 | penstock-opt | filecheck %s --check-prefix=GEMMINI
// RUN: penstock machines show vta-pynq | penstock-opt | filecheck %s --check-prefix=VTA
// RUN: penstock machines show rapid-core-like | penstock-opt | filecheck %s --check-prefix=RAPID
// RUN: penstock machines show host | penstock-opt | filecheck %s --check-prefix=HOST

// GEMMINI: machine.target @gemmini_fp32 named "gemmini-fp32" frequency 1000
// GEMMINI: machine.scope @spad size 262144 granule 16 banks 4 dtypes [f32] parent @dram address "gemmini_spad({row})" layout "columns" origin {all = "cfg"}
// GEMMINI: machine.dma @mvin unit @load from [@dram] to [@spad, @acc] bus @sys dims 2
// GEMMINI: machine.intrinsic @gemm unit @execute operands [a row, b row, acc row] shape {m = [1, 4], n = [1, 4], k = [1, 4]} ii 4 depth 12 max_iterations [65535, 65535, 65535, 65535, 65535, 65535, 65535]
// GEMMINI-NEXT: ^bb0(%a: memref<?x?xf32, strided<[?, 1]>, "spad">, %b: memref<?x?xf32, strided<[?, 1]>, "spad">, %acc: memref<?x?xf32, strided<[?, 1]>, "acc">):
// GEMMINI-NEXT: linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]
// GEMMINI: arith.mulf %in, %in_1 : f32
// GEMMINI-NEXT: arith.addf %out, %0 : f32
// GEMMINI: machine.intrinsic @mvin_add dma @mvin operands [src row, dst row] shape {i = ?, j = ?}
// GEMMINI: machine.intrinsic @mvout_relu dma @mvout
// GEMMINI: arith.maximumf %in, %0 : f32
// GEMMINI: machine.intrinsic @zero_acc dma @mvin operands [dst row]
// GEMMINI: machine.intrinsic @zero_spad dma @mvin operands [dst row]

// VTA: machine.dma @store_out unit @store from [@acc] to [@dram]
// VTA-SAME: convert {from = i32, to = i8, rule = "truncate"}
// VTA: machine.intrinsic @gemm unit @compute operands [inp row, wgt, acc row] shape {m = 1, n = 16, k = 16} ii 1 depth 10 max_iterations [16383, 16383] micro_ops 8192
// VTA: arith.extsi %in : i8 to i32
// VTA: machine.intrinsic @alu_max_imm unit @compute operands [imm, acc] shape {n = 16} ii 1 depth 10 max_iterations [16383, 16383] micro_ops 8192 imm_bits 16
// VTA: arith.maxsi %out, %in : i32
// VTA: machine.queue from @load to @compute capacity 255 on_full "error" initial 0

// RAPID: machine.bus @ext rate [64, 3] origin {rate = ["onsram", "32e9 / 1.5e9 = 64/3 B per cycle"]}
// RAPID: machine.intrinsic @vec_reciprocal unit @sfu
// RAPID: arith.divf

// HOST: machine.target @host frequency 1000
// HOST-NEXT: machine.unit @cpu
// HOST-NEXT: }
