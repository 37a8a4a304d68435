// Every operation of the dialect `graph`: the examples of docs/reference/dialects/graph.md.
// Tests print this file as it is.

// Functions of each element of one operand.
func.func @elementwise(%x: tensor<2x3xf32>, %i: tensor<4xi8>, %u: tensor<4xui8>, %m: tensor<4xi1>) {
  %abs = graph.abs %x : tensor<2x3xf32>
  %acos = graph.acos %x : tensor<2x3xf32>
  %acosh = graph.acosh %x : tensor<2x3xf32>
  %asin = graph.asin %x : tensor<2x3xf32>
  %asinh = graph.asinh %x : tensor<2x3xf32>
  %atan = graph.atan %x : tensor<2x3xf32>
  %atanh = graph.atanh %x : tensor<2x3xf32>
  %bitcast = graph.bitcast %x : tensor<2x3xf32> -> tensor<2x3xi32>
  %cast = graph.cast %x : tensor<2x3xf32> -> tensor<2x3xi32>
  %ceil = graph.ceil %x : tensor<2x3xf32>
  %clip = graph.clip %x min 0.0 max 6.0 : tensor<2x3xf32>
  %clip_1 = graph.clip %x max inf : tensor<2x3xf32>
  %clip_2 = graph.clip %u min 3.0 : tensor<4xui8>
  %cos = graph.cos %x : tensor<2x3xf32>
  %cosh = graph.cosh %x : tensor<2x3xf32>
  %elu = graph.elu %x alpha 2.0 : tensor<2x3xf32>
  %erf = graph.erf %x : tensor<2x3xf32>
  %exp = graph.exp %x : tensor<2x3xf32>
  %floor = graph.floor %x : tensor<2x3xf32>
  %gelu = graph.gelu %x : tensor<2x3xf32>
  %gelu_1 = graph.gelu %x approximate "tanh" : tensor<2x3xf32>
  %hard_sigmoid = graph.hard_sigmoid %x beta 0.25 : tensor<2x3xf32>
  %hard_swish = graph.hard_swish %x : tensor<2x3xf32>
  %identity = graph.identity %m : tensor<4xi1>
  %leaky_relu = graph.leaky_relu %x alpha 0.3 : tensor<2x3xf32>
  %log = graph.log %x : tensor<2x3xf32>
  %neg = graph.neg %i : tensor<4xi8>
  %not = graph.not %m : tensor<4xi1>
  %reciprocal = graph.reciprocal %x : tensor<2x3xf32>
  %relu = graph.relu %i : tensor<4xi8>
  %round = graph.round %x : tensor<2x3xf32>
  %selu = graph.selu %x alpha 1.5 gamma 1.0e-07 : tensor<2x3xf32>
  %sigmoid = graph.sigmoid %x : tensor<2x3xf32>
  %sign = graph.sign %i : tensor<4xi8>
  %sin = graph.sin %x : tensor<2x3xf32>
  %sinh = graph.sinh %x : tensor<2x3xf32>
  %softplus = graph.softplus %x : tensor<2x3xf32>
  %sqrt = graph.sqrt %x : tensor<2x3xf32>
  %tan = graph.tan %x : tensor<2x3xf32>
  %tanh = graph.tanh %x : tensor<2x3xf32>
  func.return
}

// Functions of the elements of several operands, which broadcast.
func.func @broadcast(%a: tensor<2x1x4xf32>, %b: tensor<3x1xf32>, %s: tensor<f32>, %l: tensor<5xi64>, %k: tensor<1xi64>, %m: tensor<5xi1>) {
  %add = graph.add %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  %and = graph.and %m, %m : (tensor<5xi1>, tensor<5xi1>) -> tensor<5xi1>
  %bitwise_and = graph.bitwise_and %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  %bitwise_or = graph.bitwise_or %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  %bitwise_xor = graph.bitwise_xor %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  %div = graph.div %b, %a : (tensor<3x1xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  %equal = graph.equal %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  %greater = graph.greater %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  %less = graph.less %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  %max = graph.max %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  %min = graph.min %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  %mod = graph.mod %b, %a : (tensor<3x1xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  %mul = graph.mul %s, %s : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %or = graph.or %m, %m : (tensor<5xi1>, tensor<5xi1>) -> tensor<5xi1>
  %pow = graph.pow %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  %prelu = graph.prelu %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  %shift_left = graph.shift_left %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  %shift_right = graph.shift_right %l, %k : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  %sub = graph.sub %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  %where = graph.where %m, %l, %k : (tensor<5xi1>, tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  func.return
}

// Reductions along dimensions.
func.func @reductions(%x: tensor<2x3x4xf32>) {
  %reduce_sum = graph.reduce_sum %x axes [1] : tensor<2x3x4xf32> -> tensor<2x1x4xf32>
  %reduce_mean = graph.reduce_mean %x axes [0, 2] keepdims false : tensor<2x3x4xf32> -> tensor<3xf32>
  %reduce_max = graph.reduce_max %x axes [0, 1, 2] keepdims false : tensor<2x3x4xf32> -> tensor<f32>
  %reduce_min = graph.reduce_min %x axes [2] : tensor<2x3x4xf32> -> tensor<2x3x1xf32>
  %reduce_prod = graph.reduce_prod %x axes [] : tensor<2x3x4xf32> -> tensor<2x3x4xf32>
  func.return
}

// Products of matrices, normalisations and softmax.
func.func @products(%a: tensor<4x2xf32>, %b: tensor<5x4xf32>, %c: tensor<5xf32>, %p: tensor<3x1x4x2xf32>, %q: tensor<6x2x7xf32>, %v: tensor<2xf32>) {
  %gemm = graph.gemm %a, %b, %c trans_a true trans_b true : (tensor<4x2xf32>, tensor<5x4xf32>, tensor<5xf32>) -> tensor<2x5xf32>
  %gemm_1 = graph.gemm %b, %a alpha 0.5 beta 2.0 : (tensor<5x4xf32>, tensor<4x2xf32>) -> tensor<5x2xf32>
  %matmul = graph.matmul %p, %q : (tensor<3x1x4x2xf32>, tensor<6x2x7xf32>) -> tensor<3x6x4x7xf32>
  %matmul_1 = graph.matmul %p, %v : (tensor<3x1x4x2xf32>, tensor<2xf32>) -> tensor<3x1x4xf32>
  %matmul_2 = graph.matmul %v, %v : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  func.return
}

func.func @normalisations(%x: tensor<1x3x4x4xf32>, %y: tensor<1x4x4x3xf32>, %v: tensor<3xf32>) {
  %batch_normalization = graph.batch_normalization %x, %v, %v, %v, %v : (tensor<1x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<1x3x4x4xf32>
  %batch_normalization_1 = graph.batch_normalization %y, %v, %v, %v, %v epsilon 0.001 axis 3 : (tensor<1x4x4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<1x4x4x3xf32>
  %softmax = graph.softmax %x axis 1 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  %log_softmax = graph.log_softmax %x axis 3 : tensor<1x3x4x4xf32> -> tensor<1x3x4x4xf32>
  %lrn = graph.lrn %y size 3 layout "NHWC" : tensor<1x4x4x3xf32> -> tensor<1x4x4x3xf32>
  func.return
}

// Attention.
func.func @attentions(%q: tensor<2x5x8xf32>, %k: tensor<2x7x8xf32>, %v: tensor<2x7x3xf32>, %m: tensor<5x1xf32>, %h: tensor<2x8x7xf16>) {
  %attention = graph.attention %q, %k, %v : (tensor<2x5x8xf32>, tensor<2x7x8xf32>, tensor<2x7x3xf32>) -> tensor<2x5x3xf32>
  %attention_1 = graph.attention %q, %k, %v, %m scale 0.125 result_perm [2, 0, 1] zero_masked true blocks [4, 2] : (tensor<2x5x8xf32>, tensor<2x7x8xf32>, tensor<2x7x3xf32>, tensor<5x1xf32>) -> tensor<3x2x5xf32>
  %attention_2 = graph.attention %h, %h, %h q_perm [0, 2, 1] k_perm [0, 2, 1] v_perm [0, 2, 1] accumulate f32 : (tensor<2x8x7xf16>, tensor<2x8x7xf16>, tensor<2x8x7xf16>) -> tensor<2x7x8xf16>
  func.return
}

// Convolution and pooling.
func.func @conv(%x: tensor<1x4x9x8xf32>, %w: tensor<6x2x3x3xf32>, %b: tensor<6xf32>, %y: tensor<1x9x8x4xf32>, %v: tensor<3x3x4x6xf32>, %l: tensor<2x3x10xf32>, %k: tensor<5x3x4xf32>) {
  %conv = graph.conv %x, %w, %b strides [2, 1] pads [1, 0, 1, 2] dilations [1, 2] group 2 : (tensor<1x4x9x8xf32>, tensor<6x2x3x3xf32>, tensor<6xf32>) -> tensor<1x6x5x6xf32>
  %conv_1 = graph.conv %y, %v strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC" : (tensor<1x9x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<1x9x8x6xf32>
  %conv_2 = graph.conv %l, %k strides [1] pads [0, 0] dilations [1] : (tensor<2x3x10xf32>, tensor<5x3x4xf32>) -> tensor<2x5x7xf32>
  func.return
}

func.func @pool(%x: tensor<1x4x9x8xf32>, %y: tensor<1x9x8x4xf32>) {
  %max_pool = graph.max_pool %x kernel_shape [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] : tensor<1x4x9x8xf32> -> tensor<1x4x4x3xf32>
  %max_pool_1 = graph.max_pool %x kernel_shape [3, 3] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_mode true : tensor<1x4x9x8xf32> -> tensor<1x4x4x4xf32>
  %average_pool = graph.average_pool %y kernel_shape [2, 2] strides [1, 1] pads [1, 1, 0, 0] dilations [1, 1] count_include_pad true layout "NHWC" : tensor<1x9x8x4xf32> -> tensor<1x9x8x4xf32>
  %global_average_pool = graph.global_average_pool %x : tensor<1x4x9x8xf32> -> tensor<1x4x1x1xf32>
  %global_max_pool = graph.global_max_pool %y layout "NHWC" : tensor<1x9x8x4xf32> -> tensor<1x1x1x4xf32>
  func.return
}

// Moving elements.
func.func @moves(%x: tensor<2x3x4xf32>, %y: tensor<2x5x4xf32>, %i: tensor<3xi8>) {
  %reshape = graph.reshape %x : tensor<2x3x4xf32> -> tensor<6x4xf32>
  %expand = graph.expand %i : tensor<3xi8> -> tensor<2x3xi8>
  %transpose = graph.transpose %x perm [2, 0, 1] : tensor<2x3x4xf32> -> tensor<4x2x3xf32>
  %concat = graph.concat %x, %y axis 1 : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x8x4xf32>
  %pad = graph.pad %x pads [0, 1, 0, 2, 0, 0] : tensor<2x3x4xf32> -> tensor<4x4x4xf32>
  %pad_1 = graph.pad %x pads [0, 1, 0, 0, 1, 0] value -inf : tensor<2x3x4xf32> -> tensor<2x5x4xf32>
  %pad_2 = graph.pad %i pads [1, 1] value -128.0 : tensor<3xi8> -> tensor<5xi8>
  %slice = graph.slice %x starts [1, 0, 3] sizes [1, 2, 4] steps [1, 2, -1] : tensor<2x3x4xf32> -> tensor<1x2x4xf32>
  func.return
}

// Elements by their places, and layouts.
func.func @indexing(%x: tensor<2x3x4xf32>, %i: tensor<5xi64>, %e: tensor<2x1x4xi64>, %n: tensor<6x2xi64>, %u: tensor<2x1x4xf32>, %v: tensor<6x4xf32>, %z: tensor<1x8x6x6xf32>) {
  %gather = graph.gather %x at %i axis 1 : (tensor<2x3x4xf32>, tensor<5xi64>) -> tensor<2x5x4xf32>
  %gather_elements = graph.gather_elements %x at %e axis 1 : (tensor<2x3x4xf32>, tensor<2x1x4xi64>) -> tensor<2x1x4xf32>
  %gather_nd = graph.gather_nd %x at %n : (tensor<2x3x4xf32>, tensor<6x2xi64>) -> tensor<6x4xf32>
  %scatter_elements = graph.scatter_elements %x at %e to %u axis 1 : (tensor<2x3x4xf32>, tensor<2x1x4xi64>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  %scatter_nd = graph.scatter_nd %x at %n to %v reduction "add" : (tensor<2x3x4xf32>, tensor<6x2xi64>, tensor<6x4xf32>) -> tensor<2x3x4xf32>
  %top_k = graph.top_k %x k 2 axis 2 : tensor<2x3x4xf32> -> tensor<2x3x2xi64>
  %top_k_1 = graph.top_k %x k 1 axis 0 largest false : tensor<2x3x4xf32> -> tensor<1x3x4xi64>
  %layout_transform = graph.layout_transform %z from "NCHW" to "NHWC" : tensor<1x8x6x6xf32> -> tensor<1x6x6x8xf32>
  %layout_transform_1 = graph.layout_transform %z from "NCHW" to "NCHW16c" : tensor<1x8x6x6xf32> -> tensor<1x1x6x6x16xf32>
  func.return
}

// 8-bit integers, and products that are summed in wider numbers.
func.func @quantized(%x: tensor<2x3xf32>, %q: tensor<2x3xui8>, %s: tensor<f32>, %z: tensor<ui8>, %v: tensor<3xf32>, %w: tensor<2xf32>) {
  %quantize_linear = graph.quantize_linear %x, %s, %z : (tensor<2x3xf32>, tensor<f32>, tensor<ui8>) -> tensor<2x3xui8>
  %dequantize_linear = graph.dequantize_linear %q, %v : (tensor<2x3xui8>, tensor<3xf32>) -> tensor<2x3xf32>
  %quantize_linear_1 = graph.quantize_linear %x, %w axis 0 : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x3xi8>
  func.return
}

func.func @accumulated(%a: tensor<2x3xui8>, %b: tensor<3x4xi8>, %c: tensor<4xi32>, %x: tensor<1x5x5x3xf16>, %w: tensor<3x3x3x4xf16>) {
  %matmul = graph.matmul %a, %b accumulate i32 : (tensor<2x3xui8>, tensor<3x4xi8>) -> tensor<2x4xi32>
  %gemm = graph.gemm %a, %b, %c accumulate i32 : (tensor<2x3xui8>, tensor<3x4xi8>, tensor<4xi32>) -> tensor<2x4xi32>
  %conv = graph.conv %x, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC" accumulate f32 : (tensor<1x5x5x3xf16>, tensor<3x3x3x4xf16>) -> tensor<1x3x3x4xf32>
  func.return
}

// Constants: weights beside the text, and small ones in it.
func.func @constants() {
  %constant = graph.constant #graph.weight<"fc.weight"> : tensor<4x3xf32>
  %constant_1 = graph.constant dense<[1, -2]> : tensor<2xi64>
  func.return
}

// Groups that become kernels, and kernels that are there already.
func.func @kernels(%x: tensor<2x4xf32>, %w: tensor<4x3xf32>) -> tensor<2x3xf32> {
  %fused = graph.fused(%x, %w) pattern complex_out_fusable {
  ^bb0(%a: tensor<2x4xf32>, %b: tensor<4x3xf32>):
    %c = graph.matmul %a, %b : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %d = graph.relu %c : tensor<2x3xf32>
    graph.yield %d : tensor<2x3xf32>
  } : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
  %kernel = graph.kernel @twice(%fused) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  func.return %kernel : tensor<2x3xf32>
}

// Branches, of which the program computes one.
func.func @branches(%c: tensor<i1>, %x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %y = graph.if %c(%x) {
  ^bb0(%a: tensor<2x3xf32>):
    %d = graph.exp %a : tensor<2x3xf32>
    graph.yield %d : tensor<2x3xf32>
  } else {
  ^bb0(%a_1: tensor<2x3xf32>):
    graph.yield %a_1 : tensor<2x3xf32>
  } : tensor<i1>, (tensor<2x3xf32>) -> tensor<2x3xf32>
  func.return %y : tensor<2x3xf32>
}

// A loop over the lines of a tensor, and one that a run ends.
func.func @loops(%n: tensor<i64>, %h: tensor<2x3xf32>, %xs: tensor<4x2x3xf32>) -> (tensor<2x3xf32>, tensor<4x2x3xf32>) {
  %last, %all = graph.loop reverse carry(%h : tensor<2x3xf32>) slices(%xs : tensor<4x2x3xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<2x3xf32>, %x: tensor<2x3xf32>):
    %s = graph.add %a, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    graph.yield %s, %s : tensor<2x3xf32>, tensor<2x3xf32>
  } -> tensor<2x3xf32>, tensor<4x2x3xf32>
  %y = graph.loop count(%n : tensor<i64>) carry(%last : tensor<2x3xf32>) reads(%h : tensor<2x3xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<2x3xf32>, %b: tensor<2x3xf32>):
    %t = graph.mul %a, %b : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    graph.yield %t : tensor<2x3xf32>
  } -> tensor<2x3xf32>
  func.return %y, %all : tensor<2x3xf32>, tensor<4x2x3xf32>
}

func.func @twice(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %out = tensor.empty() : tensor<2x3xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<2x3xf32>) outs(%out : tensor<2x3xf32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %a : f32
    linalg.yield %c : f32
  } -> tensor<2x3xf32>
  func.return %y : tensor<2x3xf32>
}
