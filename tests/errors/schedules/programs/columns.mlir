// The second factor is read along its columns.
func.func private @product(%a: memref<8x4xf32>, %b: memref<4x4xf32>, %c: memref<8x4xf32>)
    attributes {device = @gemmini_fp32} {
  linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : memref<8x4xf32>, memref<4x4xf32>) outs(%c : memref<8x4xf32>) {
  ^bb0(%p: f32, %q: f32, %r: f32):
    %s = arith.mulf %p, %q : f32
    %t = arith.addf %r, %s : f32
    linalg.yield %t : f32
  }
  func.return
}
