// RUN: penstock-opt %S/../../../dialects/machine/examples.mlir --print-op-generic | filecheck %s --check-prefix=GENERIC

// GENERIC:      "machine.target"() <{sym_name = "tiny", machine_name = "tiny-1", frequency = 200 : i64, sources = {sheet = "data sheet"}, origin = {frequency = "assumed"}}> ({
// GENERIC-NEXT:   "machine.scope"() <{sym_name = "inp", size = 4096 : i64, granule = 16 : i64, dtypes = [i8]}> : () -> ()
// GENERIC:        "machine.dma"() <{sym_name = "spill", unit = @load, from = [@acc], to = [@dram], dims = 1 : i64, latency = 8 : i64, row_overhead = 1 : i64, outstanding = 2 : i64, convert = {from = i32, to = i8, rule = "truncate"}}> : () -> ()
// GENERIC:        "machine.intrinsic"() <{sym_name = "clear", dma = @fetch, operand_names = ["dst"], strides = ["granule"], dims = ["m", "n"], shape = [array<i64: 1, 4>, array<i64>]}> ({
// GENERIC:        "machine.queue"() <{from = @compute, to = @load, capacity = 2 : i64, on_full = "block"}> : () -> ()
