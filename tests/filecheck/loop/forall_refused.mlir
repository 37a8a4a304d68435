// RUN: penstock-opt %s -p mem-plan,loop-to-accel --split-input-file --verify-diagnostics

machine.target @small frequency 100 {
  machine.scope @spad size 4096 granule 16 dtypes [f32]
}

func.func private @kernel(%x: memref<16xf32>) attributes {device = @small} {
  scf.forall (%i) in (4) {
    // expected-error @+1 {{a buffer that is made by iterations which run at once cannot have one place for all of them}}
    %a = mem.buffer : memref<16xf32, "spad">
    mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
    mem.copy %a to %x : memref<16xf32, "spad"> to memref<16xf32>
  }
  func.return
}

// -----

machine.target @small frequency 100 {
  machine.scope @spad size 4096 granule 16 dtypes [f32]
}

func.func private @kernel(%x: memref<16xf32>) attributes {device = @small} {
  // expected-error @+1 {{scf.forall cannot run on @small}}
  scf.forall (%i) in (4) {
  }
  func.return
}
