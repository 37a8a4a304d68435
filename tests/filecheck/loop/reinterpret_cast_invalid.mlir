// RUN: penstock-opt %s --split-input-file --verify-diagnostics

func.func @inside(%x: memref<8xf32>) {
  %y = memref.reinterpret_cast %x to offset: [2], sizes: [3, 2], strides: [2, 1] : memref<8xf32> to memref<3x2xf32, strided<[2, 1], offset: 2>>
  %empty = memref.reinterpret_cast %x to offset: [9], sizes: [0], strides: [1] : memref<8xf32> to memref<0xf32, strided<[1], offset: 9>>
  func.return
}

// -----

func.func @beyond(%x: memref<2x4xf32>) {
  // expected-error @+1 {{reaches elements 0 to 15 of memory that has 8}}
  %y = memref.reinterpret_cast %x to offset: [0], sizes: [16], strides: [1] : memref<2x4xf32> to memref<16xf32, strided<[1]>>
  func.return
}
