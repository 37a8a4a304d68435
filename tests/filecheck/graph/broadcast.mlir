// Operators on operands that broadcast.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @arithmetic(%a: tensor<2x1x4xf32>, %b: tensor<3x1xf32>, %s: tensor<f32>) {
// CHECK-LABEL: func.func @arithmetic
  %0 = graph.add %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  // CHECK-NEXT: %0 = graph.add %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  %1 = graph.sub %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  // CHECK-NEXT: %1 = graph.sub %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  %2 = graph.mul %s, %s : (tensor<f32>, tensor<f32>) -> tensor<f32>
  // CHECK-NEXT: %2 = graph.mul %s, %s : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %3 = graph.div %b, %a : (tensor<3x1xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  // CHECK-NEXT: %3 = graph.div %b, %a : (tensor<3x1xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  %4 = graph.pow %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  // CHECK-NEXT: %4 = graph.pow %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  %mod = graph.mod %b, %a : (tensor<3x1xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  // CHECK-NEXT: %mod = graph.mod %b, %a : (tensor<3x1xf32>, tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
  %5 = graph.max %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  // CHECK-NEXT: %5 = graph.max %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  %6 = graph.min %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  // CHECK-NEXT: %6 = graph.min %a, %b : (tensor<2x1x4xf32>, tensor<3x1xf32>) -> tensor<2x3x4xf32>
  %7 = graph.prelu %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  // CHECK-NEXT: %7 = graph.prelu %a, %s : (tensor<2x1x4xf32>, tensor<f32>) -> tensor<2x1x4xf32>
  func.return
}

func.func @logic(%a: tensor<5xi64>, %b: tensor<1xi64>, %m: tensor<5xi1>) {
// CHECK-LABEL: func.func @logic
  %0 = graph.equal %a, %b : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  // CHECK-NEXT: %0 = graph.equal %a, %b : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  %1 = graph.less %a, %b : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  // CHECK-NEXT: %1 = graph.less %a, %b : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  %2 = graph.greater %a, %b : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  // CHECK-NEXT: %2 = graph.greater %a, %b : (tensor<5xi64>, tensor<1xi64>) -> tensor<5xi1>
  %3 = graph.and %0, %m : (tensor<5xi1>, tensor<5xi1>) -> tensor<5xi1>
  // CHECK-NEXT: %3 = graph.and %0, %m : (tensor<5xi1>, tensor<5xi1>) -> tensor<5xi1>
  %4 = graph.or %1, %m : (tensor<5xi1>, tensor<5xi1>) -> tensor<5xi1>
  // CHECK-NEXT: %4 = graph.or %1, %m : (tensor<5xi1>, tensor<5xi1>) -> tensor<5xi1>
  %5 = graph.where %3, %a, %b : (tensor<5xi1>, tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  // CHECK-NEXT: %5 = graph.where %3, %a, %b : (tensor<5xi1>, tensor<5xi64>, tensor<1xi64>) -> tensor<5xi64>
  func.return
}
