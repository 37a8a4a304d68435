// Copies that no engine makes go through the scope between; what loops read again is fetched before them, if it fits.
// RUN: penstock-opt %s -p promote-levels --split-input-file | filecheck %s
// RUN: penstock-opt %s -p 'promote-levels{hoist=false}' --split-input-file | filecheck %s --check-prefix=TILES

machine.target @roomy frequency 100 {
  machine.scope @sram size 4096 granule 16 dtypes [f32] parent @dram
  machine.scope @core size 512 granule 16 dtypes [f32] parent @sram
  machine.unit @u
  machine.dma @fetch unit @u from [@dram] to [@sram] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @put unit @u from [@sram] to [@dram] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @load unit @u from [@sram] to [@core] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @store unit @u from [@core] to [@sram] dims 2 latency 1 row_overhead 0 outstanding 1
}
// The source is smaller than what the windows cover: it is held whole, and padding stays padding.
// CHECK-LABEL: @hangs_over
// CHECK: %[[X:.*]] = mem.buffer : memref<20x16xf32, "sram">
// CHECK-NEXT: mem.copy %x to %[[X]]
// CHECK-NEXT: scf.for %i =
// CHECK: mem.copy %[[X]][%at, -1] to %a else %pad : memref<20x16xf32, "sram"> to memref<6x18xf32, strided<[20, 1]>, "core">
// TILES-LABEL: @hangs_over
// TILES: scf.for %i =
// TILES: %[[AT:.*]] = arith.subi %i, %one : index
// TILES: %[[RAISED:.*]] = arith.maxsi %[[AT]],
// TILES: %[[ORIGIN:.*]] = arith.minsi %[[RAISED]],
// TILES: mem.copy %x[%[[ORIGIN]], 0] to %[[T:.*]] : memref<20x16xf32> to memref<6x16xf32, "sram">
// TILES: mem.copy %[[T]][{{.*}}, -1] to %a else %pad
func.func private @hangs_over(%x: memref<20x16xf32>) attributes {device = @roomy} {
  %pad = arith.constant 0.000000e+00 : f32
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %four = arith.constant 4 : index
  %end = arith.constant 20 : index
  scf.for %i = %zero to %end step %four {
    %at = arith.subi %i, %one : index
    %a = mem.buffer : memref<6x18xf32, strided<[20, 1]>, "core">
    mem.copy %x[%at, -1] to %a else %pad : memref<20x16xf32> to memref<6x18xf32, strided<[20, 1]>, "core">
  }
  func.return
}

// -----

machine.target @tight frequency 100 {
  machine.scope @sram size 1152 granule 16 dtypes [f32] parent @dram
  machine.scope @core size 512 granule 16 dtypes [f32] parent @sram
  machine.unit @u
  machine.dma @fetch unit @u from [@dram] to [@sram] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @put unit @u from [@sram] to [@dram] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @load unit @u from [@sram] to [@core] dims 2 latency 1 row_overhead 0 outstanding 1
  machine.dma @store unit @u from [@core] to [@sram] dims 2 latency 1 row_overhead 0 outstanding 1
}
// All of %x does not fit: the rows of one turn of the outer loop do, at an offset. What is written goes by tiles.
// CHECK-LABEL: @rows
// CHECK: scf.for %i =
// CHECK: %row = arith.minsi %i, %last : index
// CHECK-NEXT: %[[X:.*]] = mem.buffer : memref<8x32xf32, "sram">
// CHECK-NEXT: mem.copy %x[%row, 0] to %[[X]]
// CHECK-NEXT: scf.for %again =
// CHECK-NEXT: scf.for %j =
// CHECK: mem.copy %[[X]][0, %j] to %a : memref<8x32xf32, "sram"> to memref<8x4xf32, "core">
// CHECK: mem.copy %a to %[[T:.*]] : memref<8x4xf32, "core"> to memref<8x4xf32, "sram">
// CHECK-NEXT: mem.copy %[[T]] to %y[%row, %j] : memref<8x4xf32, "sram"> to memref<28x32xf32>
// TILES-LABEL: @rows
// TILES: scf.for %j =
// TILES: mem.copy %x[%row, %j] to %[[X:.*]] : memref<28x32xf32> to memref<8x4xf32, "sram">
// TILES-NEXT: mem.copy %[[X]] to %a : memref<8x4xf32, "sram"> to memref<8x4xf32, "core">
func.func private @rows(%x: memref<28x32xf32>, %y: memref<28x32xf32>) attributes {device = @tight} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %four = arith.constant 4 : index
  %eight = arith.constant 8 : index
  %last = arith.constant 20 : index
  %rows = arith.constant 28 : index
  %end = arith.constant 32 : index
  scf.for %i = %zero to %rows step %eight {
    %row = arith.minsi %i, %last : index
    scf.for %again = %zero to %four step %one {
      scf.for %j = %zero to %end step %four {
        %a = mem.buffer : memref<8x4xf32, "core">
        %tile = memref.subview %x[%row, %j] [8, 4] [1, 1] : memref<28x32xf32> to memref<8x4xf32, strided<[32, 1], offset: ?>>
        mem.copy %tile to %a : memref<8x4xf32, strided<[32, 1], offset: ?>> to memref<8x4xf32, "core">
        mem.copy %a to %y[%row, %j] : memref<8x4xf32, "core"> to memref<28x32xf32>
      }
    }
  }
  func.return
}
