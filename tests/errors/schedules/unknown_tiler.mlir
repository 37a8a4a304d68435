// $ penstock compile %s --machine gemmini-fp32 -p 'default, tile{tiler=larges}'
// pass-pipeline:1:10: error: no tiler is called "larges"
// note: did you mean "largest"?
// note: there are exhaustive, ...
func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %c = graph.matmul %a, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %c : tensor<64x64xf32>
}
