// RUN: penstock-opt %s -p accel-check-hazards --verify-diagnostics

// A loop whose bound is computed counts with all its iterations: two of them write the same bytes.
machine.target @small frequency 100 {
  machine.scope @spad size 4096 granule 16 dtypes [f32]
  machine.unit @load
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.dma @mvout unit @store from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
}
func.func @kernel(%y: memref<200016xf32>) attributes {device = @small} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c16 = arith.constant 16 : index
  %n = arith.constant 6000 : index
  %dyn = arith.muli %c2, %c2 : index
  %a = mem.buffer at 64 : memref<16xf32, "spad">
  scf.for %i0 = %c0 to %n step %c1 {
    %o = arith.muli %i0, %c16 : index
    %v = memref.subview %y[%o] [16] [1] : memref<200016xf32> to memref<16xf32, strided<[1], offset: ?>>
    %t = accel.dma %v to %a on "mvin" : memref<16xf32, strided<[1], offset: ?>> to memref<16xf32, "spad">
    accel.barrier
  }
  scf.for %j = %c0 to %dyn step %c1 {
    scf.for %i = %c0 to %n step %c1 {
      %o = arith.muli %i, %c16 : index
      %v = memref.subview %y[%o] [16] [1] : memref<200016xf32> to memref<16xf32, strided<[1], offset: ?>>
      // expected-error@+1 {{which it also writes in an earlier iteration, with no happens-before between the two}}
      %t = accel.dma %a to %v on "mvout" : memref<16xf32, "spad"> to memref<16xf32, strided<[1], offset: ?>>
    }
  }
  accel.barrier
  func.return
}
