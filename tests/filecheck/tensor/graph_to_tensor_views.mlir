// RUN: penstock-opt %s -p graph-to-tensor | filecheck %s

// Outside groups a reshape is a view, a slice of rows too, a concatenation a chain of inserts, any other op a kernel of
// its own. The channels of a grouped convolution are split by views in the caller: its kernel holds generics only.

func.func @main(%x: tensor<1x5x5x4xf32>, %i: tensor<2xui8>) -> (tensor<1x224xf32>, tensor<2xi1>) {
  %w = graph.constant #graph.weight<"w"> : tensor<3x3x2x4xf32>
  %limit = graph.constant dense<200> : tensor<ui8>
  %half = graph.constant dense<0.5> : tensor<f32>
  %y = graph.fused(%x, %w, %half) pattern complex_out_fusable {
  ^bb0(%x0: tensor<1x5x5x4xf32>, %w0: tensor<3x3x2x4xf32>, %h0: tensor<f32>):
    %c = graph.conv %x0, %w0 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] group 2 layout "NHWC" : (tensor<1x5x5x4xf32>, tensor<3x3x2x4xf32>) -> tensor<1x5x5x4xf32>
    %s = graph.mul %c, %h0 : (tensor<1x5x5x4xf32>, tensor<f32>) -> tensor<1x5x5x4xf32>
    graph.yield %s : tensor<1x5x5x4xf32>
  } : (tensor<1x5x5x4xf32>, tensor<3x3x2x4xf32>, tensor<f32>) -> tensor<1x5x5x4xf32>
  %p = graph.max_pool %x kernel_shape [2, 2] strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC" : tensor<1x5x5x4xf32> -> tensor<1x4x4x4xf32>
  %q = graph.average_pool %x kernel_shape [2, 2] strides [2, 2] pads [0, 0, 1, 1] dilations [1, 1] layout "NHWC" : tensor<1x5x5x4xf32> -> tensor<1x3x3x4xf32>
  %a = graph.reshape %y : tensor<1x5x5x4xf32> -> tensor<1x100xf32>
  %b = graph.reshape %p : tensor<1x4x4x4xf32> -> tensor<1x64xf32>
  %d = graph.reshape %q : tensor<1x3x3x4xf32> -> tensor<1x36xf32>
  %e = graph.slice %d starts [0, 30] sizes [1, 16] steps [1, -2] : tensor<1x36xf32> -> tensor<1x16xf32>
  %h = graph.slice %d starts [0, 4] sizes [1, 8] steps [1, 1] : tensor<1x36xf32> -> tensor<1x8xf32>
  %f = graph.concat %a, %b, %d, %e, %h axis 1 : (tensor<1x100xf32>, tensor<1x64xf32>, tensor<1x36xf32>, tensor<1x16xf32>, tensor<1x8xf32>) -> tensor<1x224xf32>
  %g = graph.less %i, %limit : (tensor<2xui8>, tensor<ui8>) -> tensor<2xi1>
  func.return %f, %g : tensor<1x224xf32>, tensor<2xi1>
}

// CHECK:       func.func @main(%x: tensor<1x5x5x4xf32>, %i: tensor<2xi8>, [[W:%.*]]: tensor<3x3x2x4xf32> {graph.weight = "w"})
// CHECK-NEXT:    [[X5:%.*]] = tensor.expand_shape %x {{.*}} : tensor<1x5x5x4xf32> into tensor<1x5x5x2x2xf32>
// CHECK-NEXT:    [[W5:%.*]] = tensor.expand_shape [[W]] {{.*}} : tensor<3x3x2x4xf32> into tensor<3x3x2x2x2xf32>
// CHECK-NEXT:    [[Y5:%.*]] = func.call @fused_0([[X5]], [[W5]]) :
// CHECK-NEXT:    [[Y:%.*]] = tensor.collapse_shape [[Y5]]
// CHECK-NEXT:    [[P:%.*]] = func.call @fused_1(%x) :
// CHECK-NEXT:    [[Q:%.*]] = func.call @fused_2(%x) :
// CHECK-NEXT:    [[A:%.*]] = tensor.collapse_shape [[Y]]
// CHECK-NEXT:    [[B:%.*]] = tensor.collapse_shape [[P]]
// CHECK-NEXT:    [[D:%.*]] = tensor.collapse_shape [[Q]]
// CHECK-NEXT:    [[E:%.*]] = func.call @fused_3([[D]]) :
// CHECK-NEXT:    [[H:%.*]] = tensor.extract_slice [[D]][0, 4] [1, 8] [1, 1] : tensor<1x36xf32> to tensor<1x8xf32>
// CHECK-NEXT:    [[C0:%.*]] = tensor.empty() : tensor<1x224xf32>
// CHECK-NEXT:    [[C1:%.*]] = tensor.insert_slice [[A]] into [[C0]][0, 0] [1, 100] [1, 1]
// CHECK-NEXT:    [[C2:%.*]] = tensor.insert_slice [[B]] into [[C1]][0, 100] [1, 64] [1, 1]
// CHECK-NEXT:    [[C3:%.*]] = tensor.insert_slice [[D]] into [[C2]][0, 164] [1, 36] [1, 1]
// CHECK-NEXT:    [[C4:%.*]] = tensor.insert_slice [[E]] into [[C3]][0, 200] [1, 16] [1, 1]
// CHECK-NEXT:    [[C5:%.*]] = tensor.insert_slice [[H]] into [[C4]][0, 216] [1, 8] [1, 1]
// CHECK-NEXT:    [[L:%.*]] = func.call @fused_4(%i) :
// CHECK-NEXT:    func.return [[C5]], [[L]]

// CHECK:       func.func private @fused_0(
// CHECK:         tensor.pad {{.*}} low[0, 1, 1, 0, 0] high[0, 1, 1, 0, 0]
// CHECK:         affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, (d1 + d5), (d2 + d6), d3, d7)>
// CHECK-SAME:    affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d5, d6, d7, d3, d4)>
// CHECK-SAME:    affine_map<(d0, d1, d2, d3, d4, d5, d6, d7) -> (d0, d1, d2, d3, d4)>
// CHECK-NOT:     shape
// CHECK:         arith.constant 5.000000e-01 : f32
// CHECK-NEXT:    arith.mulf

// The window of a pooling has a shape and no contents.
// CHECK:       func.func private @fused_1(
// CHECK-NEXT:    [[WINDOW:%.*]] = tensor.empty() : tensor<2x2xf32>
// CHECK:         arith.constant 0xff800000 : f32
// CHECK:         linalg.generic {{.*}} ins({{.*}}, [[WINDOW]] : tensor<1x5x5x4xf32>, tensor<2x2xf32>)
// CHECK:         arith.maximumf

// The windows at the edge hold fewer elements: their number comes from the place.
// CHECK:       func.func private @fused_2(
// CHECK:         linalg.index 1
// CHECK:         linalg.index 2
// CHECK:         arith.divf

// CHECK:       func.func private @fused_3(
// CHECK:         tensor.extract_slice {{.*}}[0, 0] [1, 16] [1, 2]
// CHECK:         affine_map<(d0, d1) -> (d0, ((d1 * -1) + 15))>

// Integers are signless below graph level: the op says how they are read.
// CHECK:       func.func private @fused_4({{.*}}: tensor<2xi8>) -> tensor<2xi1>
// CHECK:         arith.constant -56 : i8
// CHECK-NEXT:    arith.cmpi ult
