// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @f(%m: memref<4x8xf32, "spad">, %n: index, %t: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %c = arith.constant 1.0 : f32
  // CHECK: scf.forall (%i, %j) in (4, %n) {
  scf.forall (%i, %j) = (0, 0) to (4, %n) step (1, 1) {
    memref.store %c, %m[%i, %j] : memref<4x8xf32, "spad">
    // CHECK: gpu.barrier
    // CHECK-NEXT: } {mapping = [#gpu.thread<y>, #gpu.thread<x>]}
    gpu.barrier
    scf.forall.in_parallel {}
  } {mapping = [#gpu.thread<y>, #gpu.thread<x>]}
  // CHECK: scf.forall (%{{.*}}) = (%n) to (8) step (%n) {
  scf.forall (%i) = (%n) to (8) step (%n) {
  }
  // CHECK: %r = scf.forall (%{{.*}}) in (4) shared_outs(%o = %t) -> (tensor<4x8xf32>) {
  %r = scf.forall (%i) in (4) shared_outs(%o = %t) -> (tensor<4x8xf32>) {
    %s = tensor.extract_slice %o[%i, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
    // CHECK: scf.forall.in_parallel {
    // CHECK-NEXT: tensor.parallel_insert_slice %s into %o[%{{.*}}, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%i, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
    }
  } {mapping = [#gpu.block<x>]}
  func.return %r : tensor<4x8xf32>
}
