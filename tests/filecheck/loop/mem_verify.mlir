// RUN: penstock-opt %s -p mem-verify --split-input-file --verify-diagnostics

machine.target @small frequency 100 {
  machine.scope @spad size 128 granule 16 dtypes [f32]
}

func.func private @kernel(%x: memref<16xf32>) {
  %a = mem.buffer at 0 : memref<16xf32, "spad">
  mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
  // expected-error @+1 {{@kernel, scope "spad": %a [0, 64) and %b [48, 80) share bytes [48, 64) while both are alive, in steps [4, 5)}}
  %b = mem.buffer at 48 : memref<8xf32, "spad">
  mem.copy %a[8] to %b : memref<16xf32, "spad"> to memref<8xf32, "spad">
  func.return
}

// -----

func.func private @kernel(%x: memref<16xf32>) {
  // expected-error @+1 {{%t of @kernel has no offset in the arena yet}}
  %t = memref.alloc() : memref<16xf32>
  mem.copy %x to %t : memref<16xf32> to memref<16xf32>
  func.return
}
