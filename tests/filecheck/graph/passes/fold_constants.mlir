// RUN: penstock-opt %s -p fold-constants | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK-NEXT:    %[[S:.*]] = graph.constant dense<[3, 2]> : tensor<2xi64>
// CHECK-NEXT:    %[[T:.*]] = graph.constant dense<true> : tensor<i1>
// CHECK-NEXT:    %[[HALF:.*]] = graph.constant dense<5.000000e-01> : tensor<f32>
// CHECK-NEXT:    %[[BIG:.*]] = graph.expand %[[HALF]] : tensor<f32> -> tensor<1024x1024xf32>
// CHECK-NEXT:    %[[B:.*]] = graph.constant dense<2.500000e-01> : tensor<3xf32>
// CHECK-NEXT:    func.return %[[S]], %[[T]], %[[BIG]], %[[B]]
func.func @main() -> (tensor<2xi64>, tensor<i1>, tensor<1024x1024xf32>, tensor<3xf32>) {
  %shape = graph.constant dense<[1, 2, 3]> : tensor<3xi64>
  %s = graph.slice %shape starts [2] sizes [2] steps [-1] : tensor<3xi64> -> tensor<2xi64>
  %one = graph.constant dense<1> : tensor<i64>
  %two = graph.constant dense<2> : tensor<i64>
  %t = graph.less %one, %two : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %half = graph.constant dense<0.5> : tensor<f32>
  %big = graph.expand %half : tensor<f32> -> tensor<1024x1024xf32>
  %q = graph.mul %half, %half : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %b = graph.expand %q : tensor<f32> -> tensor<3xf32>
  func.return %s, %t, %big, %b : tensor<2xi64>, tensor<i1>, tensor<1024x1024xf32>, tensor<3xf32>
}
