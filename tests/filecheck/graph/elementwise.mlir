// Operators on each element of one operand.
// RUN: penstock-opt %s | filecheck %s
// RUN: penstock-opt %s --print-op-generic | penstock-opt | filecheck %s

func.func @plain(%x: tensor<2x3xf32>, %i: tensor<4xi8>, %m: tensor<4xi1>) {
// CHECK-LABEL: func.func @plain
  %0 = graph.abs %x : tensor<2x3xf32>
  // CHECK-NEXT: %0 = graph.abs %x : tensor<2x3xf32>
  %1 = graph.neg %i : tensor<4xi8>
  // CHECK-NEXT: %1 = graph.neg %i : tensor<4xi8>
  %2 = graph.exp %x : tensor<2x3xf32>
  // CHECK-NEXT: %2 = graph.exp %x : tensor<2x3xf32>
  %3 = graph.log %x : tensor<2x3xf32>
  // CHECK-NEXT: %3 = graph.log %x : tensor<2x3xf32>
  %4 = graph.sqrt %x : tensor<2x3xf32>
  // CHECK-NEXT: %4 = graph.sqrt %x : tensor<2x3xf32>
  %5 = graph.reciprocal %x : tensor<2x3xf32>
  // CHECK-NEXT: %5 = graph.reciprocal %x : tensor<2x3xf32>
  %6 = graph.floor %x : tensor<2x3xf32>
  // CHECK-NEXT: %6 = graph.floor %x : tensor<2x3xf32>
  %7 = graph.ceil %x : tensor<2x3xf32>
  // CHECK-NEXT: %7 = graph.ceil %x : tensor<2x3xf32>
  %8 = graph.sign %i : tensor<4xi8>
  // CHECK-NEXT: %8 = graph.sign %i : tensor<4xi8>
  %9 = graph.erf %x : tensor<2x3xf32>
  // CHECK-NEXT: %9 = graph.erf %x : tensor<2x3xf32>
  %10 = graph.relu %i : tensor<4xi8>
  // CHECK-NEXT: %10 = graph.relu %i : tensor<4xi8>
  %11 = graph.sigmoid %x : tensor<2x3xf32>
  // CHECK-NEXT: %11 = graph.sigmoid %x : tensor<2x3xf32>
  %12 = graph.tanh %x : tensor<2x3xf32>
  // CHECK-NEXT: %12 = graph.tanh %x : tensor<2x3xf32>
  %13 = graph.softplus %x : tensor<2x3xf32>
  // CHECK-NEXT: %13 = graph.softplus %x : tensor<2x3xf32>
  %14 = graph.hard_swish %x : tensor<2x3xf32>
  // CHECK-NEXT: %14 = graph.hard_swish %x : tensor<2x3xf32>
  %15 = graph.identity %m : tensor<4xi1>
  // CHECK-NEXT: %15 = graph.identity %m : tensor<4xi1>
  %16 = graph.not %m : tensor<4xi1>
  // CHECK-NEXT: %16 = graph.not %m : tensor<4xi1>
  func.return
}

func.func @with_properties(%x: tensor<2x3xf32>, %i: tensor<4xui8>) {
// CHECK-LABEL: func.func @with_properties
  // A property that has its default value is not printed.
  %0 = graph.leaky_relu %x alpha 0.01 : tensor<2x3xf32>
  // CHECK-NEXT: %0 = graph.leaky_relu %x : tensor<2x3xf32>
  %1 = graph.leaky_relu %x alpha 0.3 : tensor<2x3xf32>
  // CHECK-NEXT: %1 = graph.leaky_relu %x alpha 0.3 : tensor<2x3xf32>
  %2 = graph.elu %x alpha 2.0 {note = "kept"} : tensor<2x3xf32>
  // CHECK-NEXT: %2 = graph.elu %x alpha 2.0 {note = "kept"} : tensor<2x3xf32>
  %3 = graph.selu %x alpha 1.5 gamma 1.0e-7 : tensor<2x3xf32>
  // CHECK-NEXT: %3 = graph.selu %x alpha 1.5 gamma 1.0e-07 : tensor<2x3xf32>
  %4 = graph.hard_sigmoid %x beta 0.25 : tensor<2x3xf32>
  // CHECK-NEXT: %4 = graph.hard_sigmoid %x beta 0.25 : tensor<2x3xf32>
  %5 = graph.gelu %x : tensor<2x3xf32>
  // CHECK-NEXT: %5 = graph.gelu %x : tensor<2x3xf32>
  %6 = graph.gelu %x approximate "tanh" : tensor<2x3xf32>
  // CHECK-NEXT: %6 = graph.gelu %x approximate "tanh" : tensor<2x3xf32>
  %7 = graph.clip %x min 0.0 max 6.0 : tensor<2x3xf32>
  // CHECK-NEXT: %7 = graph.clip %x min 0.0 max 6.0 : tensor<2x3xf32>
  %8 = graph.clip %x max inf : tensor<2x3xf32>
  // CHECK-NEXT: %8 = graph.clip %x max inf : tensor<2x3xf32>
  %9 = graph.clip %i min 3 : tensor<4xui8>
  // CHECK-NEXT: %9 = graph.clip %i min 3.0 : tensor<4xui8>
  %10 = graph.cast %x : tensor<2x3xf32> -> tensor<2x3xi32>
  // CHECK-NEXT: %10 = graph.cast %x : tensor<2x3xf32> -> tensor<2x3xi32>
  func.return
}
