// RUN: penstock-opt %s -p tensor-to-loop | filecheck %s
// RUN: penstock-opt %s -p tensor-to-loop --print-op-generic | penstock-opt | filecheck %s

// A tiled pooling beside its input: boxes of the pad are window copies, the window of the pooling is a view
// without storage, the loop updates the kernel's out argument, and that is a part of the concatenation.

// CHECK:      func.func private @pool(%x: memref<1x8x8xf32>, %r: memref<1x4x4xf32, strided<[16, 4, 1], offset: ?>>) {
// CHECK:        scf.for %i = %c0 to %c4 step %c2 {
// CHECK-NEXT:     %o = arith.muli %i, %c2 : index
// CHECK-NEXT:     %s = memref.subview %r[0, %i, 0] [1, 2, 4] [1, 1, 1]
// CHECK-NEXT:     %xs = memref.alloc() : memref<1x5x10xf32>
// CHECK-NEXT:     [[ONE:%.*]] = arith.constant 1 : index
// CHECK-NEXT:     [[AT:%.*]] = arith.subi %o, [[ONE]] : index
// CHECK-NEXT:     mem.copy %x[0, [[AT]], -1] to %xs else %m : memref<1x8x8xf32> to memref<1x5x10xf32>
// CHECK-NEXT:     linalg.generic {{.*}} outs(%s :
// CHECK:          [[W:%.*]] = memref.reinterpret_cast %xs to offset: [0], sizes: [3, 3], strides: [%{{.*}}, %{{.*}}] : memref<1x5x10xf32> to memref<3x3xf32, strided<[?, ?]>>
// CHECK-NEXT:     linalg.generic {{.*}} ins(%xs, [[W]] : {{.*}}) outs(%s :
// CHECK-NOT:    mem.copy
// CHECK:        func.return

func.func private @pool(%x: tensor<1x8x8xf32>) -> tensor<1x4x4xf32> {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %p = tensor.pad %x low[0, 1, 1] high[0, 1, 1] {
  ^bb0(%h: index, %i: index, %j: index):
    %m = arith.constant -1.0 : f32
    tensor.yield %m : f32
  } : tensor<1x8x8xf32> to tensor<1x10x10xf32>
  %w = tensor.empty() : tensor<3x3xf32>
  %e = tensor.empty() : tensor<1x4x4xf32>
  %r = scf.for %i = %c0 to %c4 step %c2 iter_args(%y = %e) -> (tensor<1x4x4xf32>) {
    %o = arith.muli %i, %c2 : index
    %s = tensor.extract_slice %y[0, %i, 0] [1, 2, 4] [1, 1, 1] : tensor<1x4x4xf32> to tensor<1x2x4xf32>
    %xs = tensor.extract_slice %p[0, %o, 0] [1, 5, 10] [1, 1, 1] : tensor<1x10x10xf32> to tensor<1x5x10xf32>
    %f = linalg.generic {indexing_maps = [affine_map<(n, a, b) -> (n, a, b)>], iterator_types = ["parallel", "parallel", "parallel"]} outs(%s : tensor<1x2x4xf32>) {
    ^bb0(%old: f32):
      linalg.yield %zero : f32
    } -> tensor<1x2x4xf32>
    %t = linalg.generic {indexing_maps = [affine_map<(n, a, b, c, d) -> (n, a * 2 + c, b * 2 + d)>, affine_map<(n, a, b, c, d) -> (c, d)>, affine_map<(n, a, b, c, d) -> (n, a, b)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%xs, %w : tensor<1x5x10xf32>, tensor<3x3xf32>) outs(%f : tensor<1x2x4xf32>) {
    ^bb0(%in: f32, %win: f32, %acc: f32):
      %max = arith.maximumf %in, %acc : f32
      linalg.yield %max : f32
    } -> tensor<1x2x4xf32>
    %n = tensor.insert_slice %t into %y[0, %i, 0] [1, 2, 4] [1, 1, 1] : tensor<1x2x4xf32> into tensor<1x4x4xf32>
    scf.yield %n : tensor<1x4x4xf32>
  }
  func.return %r : tensor<1x4x4xf32>
}

// CHECK:      func.func @main(%x: memref<1x8x8xf32> {graph.name = "x"}, %z: memref<1x4x4xf32>, %b: memref<1x8x4xf32> {graph.output = "y"}) {
// CHECK-NEXT:   [[PART:%.*]] = memref.subview %b[0, 4, 0] [1, 4, 4] [1, 1, 1] : memref<1x8x4xf32> to memref<1x4x4xf32, strided<[32, 4, 1], offset: 16>>
// CHECK:        func.call @pool(%x, {{%.*}}) : (memref<1x8x8xf32>, memref<1x4x4xf32, strided<[16, 4, 1], offset: ?>>) -> ()
// CHECK-NEXT:   mem.copy %z to %b[0, 0, 0] : memref<1x4x4xf32> to memref<1x8x4xf32>
// CHECK-NEXT:   func.return

func.func @main(%x: tensor<1x8x8xf32> {graph.name = "x"}, %z: tensor<1x4x4xf32>) -> (tensor<1x8x4xf32> {graph.name = "y"}) {
  %y = func.call @pool(%x) : (tensor<1x8x8xf32>) -> tensor<1x4x4xf32>
  %e = tensor.empty() : tensor<1x8x4xf32>
  %a = tensor.insert_slice %y into %e[0, 4, 0] [1, 4, 4] [1, 1, 1] : tensor<1x4x4xf32> into tensor<1x8x4xf32>
  %b = tensor.insert_slice %z into %a[0, 0, 0] [1, 4, 4] [1, 1, 1] : tensor<1x4x4xf32> into tensor<1x8x4xf32>
  func.return %b : tensor<1x8x4xf32>
}
