// RUN: penstock-opt %s --split-input-file --verify-diagnostics

func.func @f() {
  // expected-error @+1 {{expected 2 bounds and steps}}
  scf.forall (%i, %j) in (4) {
  }
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{has the step 0, and a step is positive}}
  scf.forall (%i) = (0) to (4) step (0) {
  }
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{maps 1 dims, and has 2}}
  scf.forall (%i, %j) in (4, 4) {
  } {mapping = [#gpu.thread<x>]}
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{maps its dims to several kinds of processor, #gpu.thread<x>, #gpu.block<y>}}
  scf.forall (%i, %j) in (4, 4) {
  } {mapping = [#gpu.thread<x>, #gpu.block<y>]}
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{maps two dims to the same}}
  scf.forall (%i, %j) in (4, 4) {
  } {mapping = [#gpu.thread<x>, #gpu.thread<x>]}
  func.return
}

// -----

func.func @f() {
  scf.forall (%i) in (4) {
  // expected-error @+1 {{#gpu.thread has the dims x, y, z, linear_dim_0}}
  } {mapping = [#gpu.thread<w>]}
  func.return
}

// -----

func.func @f() {
  scf.forall (%i) in (4) {
    // expected-error @+1 {{is among iterations that are mapped to blocks, which cannot wait for each other}}
    gpu.barrier
  } {mapping = [#gpu.block<x>]}
  func.return
}

// -----

func.func @f(%t: tensor<4xf32>, %u: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{inserts into a tensor that is none of those that its iterations share}}
  %r = scf.forall (%i) in (4) shared_outs(%o = %t) -> (tensor<4xf32>) {
    %s = tensor.extract_slice %o[%i] [1] [1] : tensor<4xf32> to tensor<1xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %u[%i] [1] [1] : tensor<1xf32> into tensor<4xf32>
    }
  }
  func.return %r : tensor<4xf32>
}

// -----

func.func @f(%t: tensor<4xf32>) -> tensor<4xf32> {
  %r = scf.forall (%i) in (4) shared_outs(%o = %t) -> (tensor<4xf32>) {
    %s = tensor.extract_slice %o[%i] [1] [1] : tensor<4xf32> to tensor<1xf32>
    scf.forall.in_parallel {
      // expected-error @+1 {{reaches element 4 of dim 0, which has 4}}
      tensor.parallel_insert_slice %s into %o[4] [1] [1] : tensor<1xf32> into tensor<4xf32>
    }
  }
  func.return %r : tensor<4xf32>
}

// -----

func.func @f(%t: tensor<4xf32>) {
  // expected-error @+1 {{has results of other types than the tensors that its iterations share}}
  %r = "scf.forall"(%t) <{operandSegmentSizes = array<i32: 0, 0, 0, 1>, staticLowerBound = array<i64: 0>, staticStep = array<i64: 1>, staticUpperBound = array<i64: 4>}> ({
  ^bb0(%i: index, %o: tensor<4xf32>):
    "scf.forall.in_parallel"() ({
    ^bb0:
    }) : () -> ()
  }) : (tensor<4xf32>) -> tensor<8xf32>
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{has threads = "two", and a program has from 1 to 1024 threads}}
  scf.forall (%i) in (4) {
  } {threads = "two"}
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{has threads = -3 : i64, and a program has from 1 to 1024 threads}}
  scf.forall (%i) in (4) {
  } {threads = -3 : i64}
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{has threads = 0 : i64, and a program has from 1 to 1024 threads}}
  scf.forall (%i) in (4) {
  } {threads = 0 : i64}
  func.return
}

// -----

func.func @f() {
  // expected-error @+1 {{has threads = 1025 : i64, and a program has from 1 to 1024 threads}}
  scf.forall (%i) in (4) {
  } {threads = 1025 : i64}
  func.return
}
