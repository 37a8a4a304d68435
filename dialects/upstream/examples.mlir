// Operations of MLIR's dialects that xDSL 0.74 has not, or not as MLIR: the examples of docs/reference/dialects/mlir.md.
// Tests print this file as it is.

func.func @loops(%x: memref<64xf32>, %n: index, %i: index, %tag: memref<1xi32>, %y: memref<64xf32, 1 : i64>, %z: f32) {
  %parallel = "affine.parallel"() <{reductions = [0 : i64], lowerBoundsMap = affine_map<() -> (0)>, lowerBoundsGroups = dense<1> : vector<1xi32>, upperBoundsMap = affine_map<() -> (64)>, upperBoundsGroups = dense<1> : vector<1xi32>, steps = [2 : i64]}> ({
  ^bb0(%j: index):
    affine.yield %z : f32
  }) : () -> f32
  "affine.if"(%i, %n) ({
    memref.store %z, %x[%i] : memref<64xf32>
    affine.yield
  }, {
  }) {condition = affine_set<(d0)[s0] : (((s0 + (d0 * -1)) + -1) >= 0)>} : (index, index) -> ()
  scf.forall (%j_1) in (64) {
    memref.store %z, %x[%j_1] : memref<64xf32>
  }
  %remf = arith.remf %z, %z : f32
  "memref.dma_start"(%x, %i, %y, %i, %n, %tag, %i) : (memref<64xf32>, index, memref<64xf32, 1 : i64>, index, index, memref<1xi32>, index) -> ()
  "vector.print"(%z) : (f32) -> ()
  "gpu.memcpy"(%x, %x) : (memref<64xf32>, memref<64xf32>) -> ()
  "gpu.dealloc"(%x) : (memref<64xf32>) -> ()
  func.return
}

func.func @tensors(%x: tensor<16x32xf32>, %y: tensor<16xf32>, %o: tensor<4x8xf32>, %s: tensor<1x8xf32>) {
  %reduce = linalg.reduce ins(%x : tensor<16x32xf32>) outs(%y : tensor<16xf32>) dimensions = [1]
  (%a: f32, %b: f32) {
    %sum = arith.addf %a, %b : f32
    linalg.yield %sum : f32
  }
  %map = linalg.map ins(%y, %y : tensor<16xf32>, tensor<16xf32>) outs(%y : tensor<16xf32>)
  (%c: f32, %d: f32) {
    %product = arith.mulf %c, %d : f32
    linalg.yield %product : f32
  }
  %softmax = linalg.softmax dimension(1) ins(%x : tensor<16x32xf32>) outs(%x : tensor<16x32xf32>) -> tensor<16x32xf32>
  %forall = scf.forall (%i) in (4) shared_outs(%out = %o) -> (tensor<4x8xf32>) {
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %out[%i, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
    }
  }
  %empty = tensor.empty() : tensor<4x8xf32>
  func.return
}

transform.named_sequence @handles(%kernel: !transform.any_op, %loop: !transform.op<"scf.for">) {
  %split, %split_1 = transform.split_handle %kernel : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %parent = transform.get_parent_op %split {isolated_from_above} : (!transform.any_op) -> !transform.any_op
  %producer = transform.get_producer_of_operand %split_1[0] : (!transform.any_op) -> !transform.any_op
  %consumers = transform.get_consumers_of_result %split[0] : (!transform.any_op) -> !transform.any_op
  %operand = transform.get_operand %split_1[0] : (!transform.any_op) -> !transform.any_value
  %result = transform.get_result %split[0] : (!transform.any_op) -> !transform.any_value
  %defining = transform.get_defining_op %operand : (!transform.any_value) -> !transform.any_op
  %merged = transform.merge_handles %split, %split_1 : !transform.any_op
  %constant = transform.param.constant 4 : i64 -> !transform.any_param
  %cast = transform.cast %parent : !transform.any_op to !transform.op<"func.func">
  %knob = transform.tune.knob<"rows"> options = [2 : i64, 4 : i64, 8 : i64] -> !transform.any_param
  transform.tune.alternatives<"way"> {
    transform.yield
  }, {
    transform.yield
  }
  transform.include @structured failures(propagate) (%split) : (!transform.any_op) -> ()
  transform.yield
}

transform.named_sequence @loops_of_schedules(%loop: !transform.any_op) {
  transform.loop.unroll %loop {factor = 4 : i64} : !transform.any_op
  %peel, %peel_1 = transform.loop.peel %loop {peel_front = true} : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %coalesce = transform.loop.coalesce %loop : (!transform.any_op) -> !transform.any_op
  transform.yield
}

transform.named_sequence @structured(%op: !transform.any_op) {
  %generalize = transform.structured.generalize %op : (!transform.any_op) -> !transform.any_op
  %interchange = transform.structured.interchange %op iterator_interchange = [1, 0] : (!transform.any_op) -> !transform.any_op
  %fused, %i = transform.structured.fuse %op [16] : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %tile, %forall = transform.structured.tile_using_forall %op tile_sizes [16, 16] : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
  %producer, %loop = transform.structured.fuse_into_containing_op %op into %forall : (!transform.any_op, !transform.any_op) -> (!transform.any_op, !transform.any_op)
  %fill, %partial, %whole, %combine = transform.structured.split_reduction %op {split_factor = 4 : i64, insert_split_dimension = 2 : i64} : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op, !transform.any_op)
  %padded, %pads, %copy = transform.structured.pad %op pad_to_multiple_of [3] {padding_dimensions = [0 : i64]} : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
  %loops = transform.structured.convert_to_loops %op : (!transform.any_op) -> !transform.any_op
  transform.yield
}
