// RUN: penstock-opt %s -p tensor-to-loop | filecheck %s
// RUN: penstock-opt %s -p tensor-to-loop --print-op-generic | penstock-opt | filecheck %s

// Constant tensors are globals, one for each value, under names that are free; the shape of a reshape is none.

// CHECK-DAG: "memref.global"() <{sym_name = "constant_0_1", type = memref<2xi64>, initial_value = dense<[3, 5]> : tensor<2xi64>, sym_visibility = "private", constant}> : () -> ()
// CHECK-DAG: "memref.global"() <{sym_name = "constant_1", type = memref<2xi64>, initial_value = dense<7> : tensor<2xi64>, sym_visibility = "private", constant}> : () -> ()

func.func private @constant_0(%x: index) {
  func.return
}

// CHECK:      func.func @main(%x: memref<6xi64>, %a: memref<2xi64> {{.*}}, %b: memref<2xi64> {{.*}}, %c: memref<2xi64> {{.*}}, %y: memref<2x3xi64> {{.*}}) {
// CHECK-NEXT:   [[A:%.*]] = memref.get_global @constant_0_1 : memref<2xi64>
// CHECK-NEXT:   [[B:%.*]] = memref.get_global @constant_1 : memref<2xi64>
// CHECK-NEXT:   [[C:%.*]] = memref.get_global @constant_0_1 : memref<2xi64>
// CHECK-NEXT:   [[Y:%.*]] = memref.expand_shape %x
// CHECK-NEXT:   mem.copy [[A]] to %a
// CHECK-NEXT:   mem.copy [[B]] to %b
// CHECK-NEXT:   mem.copy [[C]] to %c
// CHECK-NEXT:   mem.copy [[Y]] to %y
// CHECK-NEXT:   func.return
func.func @main(%x: tensor<6xi64>) -> (tensor<2xi64>, tensor<2xi64>, tensor<2xi64>, tensor<2x3xi64>) {
  %a = arith.constant dense<[3, 5]> : tensor<2xi64>
  %b = arith.constant dense<7> : tensor<2xi64>
  %c = arith.constant dense<[3, 5]> : tensor<2xi64>
  %shape = arith.constant dense<[2, 3]> : tensor<2xi64>
  %y = tensor.reshape %x(%shape) : (tensor<6xi64>, tensor<2xi64>) -> tensor<2x3xi64>
  func.return %a, %b, %c, %y : tensor<2xi64>, tensor<2xi64>, tensor<2xi64>, tensor<2x3xi64>
}
