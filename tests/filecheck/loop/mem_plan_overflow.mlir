// RUN: penstock-opt %s -p mem-plan --split-input-file --verify-diagnostics

// The error stands where the peak is: at the copy that reads the one while it writes the other.

machine.target @small frequency 100 {
  machine.scope @spad size 64 granule 16 dtypes [f32]
}

func.func private @kernel(%x: memref<16xf32>) {
  %a = mem.buffer : memref<16xf32, "spad">
  mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
  %b = mem.buffer : memref<8xf32, "spad">
  // expected-error @+1 {{@kernel does not fit scope "spad": 96 bytes are alive at once here, and it has 64}}
  mem.copy %a[8] to %b : memref<16xf32, "spad"> to memref<8xf32, "spad">
  func.return
}

// -----

func.func private @kernel(%x: memref<16xf32>) {
  // expected-error @+1 {{there is no scope "spad"}}
  %a = mem.buffer : memref<16xf32, "spad">
  func.return
}
