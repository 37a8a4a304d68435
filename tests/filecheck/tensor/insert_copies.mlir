// RUN: penstock-opt %s -p insert-copies | filecheck %s
// RUN: penstock-opt %s -p insert-copies,insert-copies | filecheck %s

// What cse has merged is parted again; only the value that is read after it was overwritten is copied.

// CHECK:      func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
// CHECK-NEXT:   %e = tensor.empty() : tensor<4xf32>
// CHECK-NEXT:   %a = linalg.generic {{.*}} ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>)
// CHECK:        [[E1:%.*]] = tensor.empty() : tensor<4xf32>
// CHECK-NEXT:   %b = linalg.generic {{.*}} ins(%a : tensor<4xf32>) outs([[E1]] : tensor<4xf32>)
// CHECK:        [[E2:%.*]] = tensor.empty() : tensor<4xf32>
// CHECK-NEXT:   [[COPY:%.*]] = tensor.insert_slice %a into [[E2]][0] [4] [1] : tensor<4xf32> into tensor<4xf32>
// CHECK-NEXT:   %c = linalg.generic {{.*}} ins(%b : tensor<4xf32>) outs([[COPY]] : tensor<4xf32>)
// CHECK:        func.return %a, %c
#id = affine_map<(i) -> (i)>
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4xf32>
  %dead = tensor.extract_slice %x[0] [2] [1] : tensor<4xf32> to tensor<2xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.addf %i, %i : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  %b = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.mulf %i, %i : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  %c = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%b : tensor<4xf32>) outs(%a : tensor<4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.addf %i, %o : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  func.return %a, %c : tensor<4xf32>, tensor<4xf32>
}
