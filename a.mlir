builtin.module {
  func.func @main(%x: tensor<4xf32> {graph.name = "x"}) -> tensor<4xf32> {
    %y = graph.relu %x : tensor<4xf32> loc("/tmp/rv/a.mlir":2:3)
    func.return %y : tensor<4xf32> loc("/tmp/rv/a.mlir":3:3)
  } loc("/tmp/rv/a.mlir":1:1)
}
