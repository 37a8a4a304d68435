// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

builtin.module attributes {transform.with_named_sequence} {
  transform.named_sequence @kernel(%kernel: !transform.any_op {transform.readonly}) {
    %0 = transform.structured.match ops{["scf.for"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %i, %j, %k = transform.split_handle %0 : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    %copy = transform.structured.match ops{["mem.copy"]} in %kernel : (!transform.any_op) -> !transform.any_op
    // CHECK: %blocks = schedule.parallel %k
    %blocks = schedule.parallel %k
    // CHECK-NEXT: %threads = schedule.bind %i, %j to [#gpu.thread<y>, #gpu.thread<x>]
    %threads = schedule.bind %i, %j to [#gpu.thread<y>, #gpu.thread<x>]
    // CHECK-NEXT: %part = schedule.cooperate %copy
    %part = schedule.cooperate %copy
    // CHECK-NEXT: schedule.insert_barriers %threads
    schedule.insert_barriers %threads
    transform.yield
  }
}
