builtin.module {
  func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
    %0 = graph.kernel @first(%x) : (tensor<64xf32>) -> tensor<64xf32>
    %1 = graph.kernel @second(%0) : (tensor<64xf32>) -> tensor<64xf32>
    func.return %1 : tensor<64xf32>
  }
  func.func private @first(%x: tensor<64xf32>) -> tensor<64xf32> {
    %y = tensor.empty() : tensor<64xf32>
    %y_1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : tensor<64xf32>) outs(%y : tensor<64xf32>) {
    ^bb0(%0: f32, %1: f32):
      %2 = math.exp %0 : f32
      %3 = math.exp %2 : f32
      linalg.yield %3 : f32
    } -> tensor<64xf32>
    %y_2 = tensor.empty() : tensor<64xf32>
    %y_3 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%y_1 : tensor<64xf32>) outs(%y_2 : tensor<64xf32>) attrs =  {mem.explicit} {
    ^bb0(%4: f32, %5: f32):
      linalg.yield %4 : f32
    } -> tensor<64xf32>
    func.return %y_3 : tensor<64xf32>
  }
  func.func private @second(%x: tensor<64xf32>) -> tensor<64xf32> {
    %y = tensor.empty() : tensor<64xf32>
    %y_1 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : tensor<64xf32>) outs(%y : tensor<64xf32>) {
    ^bb0(%0: f32, %1: f32):
      %2 = math.exp %0 : f32
      %3 = math.exp %2 : f32
      linalg.yield %3 : f32
    } -> tensor<64xf32>
    %y_2 = tensor.empty() : tensor<64xf32>
    %y_3 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%y_1 : tensor<64xf32>) outs(%y_2 : tensor<64xf32>) attrs =  {mem.explicit} {
    ^bb0(%4: f32, %5: f32):
      linalg.yield %4 : f32
    } -> tensor<64xf32>
    func.return %y_3 : tensor<64xf32>
  }
}
