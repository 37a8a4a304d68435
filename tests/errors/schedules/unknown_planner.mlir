// $ penstock compile %s --machine gemmini-fp32 -p 'default, mem-plan{planner=first-fitt}'
// pass-pipeline:1:10: error: no planner is called "first-fitt"
// note: did you mean "first-fit-by-start"?
// note: there are best-fit-by-area, ...
func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %c = graph.matmul %a, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %c : tensor<64x64xf32>
}
