// RUN: penstock-opt %s --split-input-file --verify-diagnostics

machine.target @m frequency 1 {
  // expected-error @below {{scope "s": size 100 is not a multiple of the granule, 16}}
  machine.scope @s size 100 granule 16 dtypes [f32]
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{scope "s": size must be at least 1, but is 0}}
  machine.scope @s size 0 granule 16 dtypes [f32]
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{scope "s": granule must be at least 1, but is -4}}
  machine.scope @s size 64 granule -4 dtypes [f32]
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{scope "s": dtypes must name at least one element type}}
  machine.scope @s size 64 granule 4 dtypes []
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{scope "s": rate must be [bytes, cycles], but has 1 numbers}}
  machine.scope @s size 64 granule 4 dtypes [f32] rate [8]
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{bus "b": rate must be at least 1, but is 0}}
  machine.bus @b rate [8, 0]
}

// -----

// expected-error @below {{scope "s": unknown scope "l2"; known here: s, dram}}
machine.target @m frequency 1 {
  machine.scope @s size 64 granule 4 dtypes [f32] parent @l2
}

// -----

// expected-error @below {{scope "s": its parents lead back to itself: s in t in s}}
machine.target @m frequency 1 {
  machine.scope @s size 64 granule 4 dtypes [f32] parent @t
  machine.scope @t size 64 granule 4 dtypes [f32] parent @s
}

// -----

// expected-error @below {{scope "dram": "dram" means off chip and is not declared}}
machine.target @m frequency 1 {
  machine.scope @dram size 64 granule 4 dtypes [f32]
}

// -----

// expected-error @below {{Redefinition of symbol "s"}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f32]
  machine.unit @s
}

// -----

// expected-error @below {{dma "d": unknown unit "lod"; did you mean "load"?}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f32]
  machine.unit @load
  machine.dma @d unit @lod from [@dram] to [@s] dims 1 latency 0 row_overhead 0 outstanding 1
}

// -----

// expected-error @below {{dma "d": unknown bus "b"; known here: none}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f32]
  machine.unit @u
  machine.dma @d unit @u from [@dram] to [@s] bus @b dims 1 latency 0 row_overhead 0 outstanding 1
}

// -----

// expected-error @below {{dma "d": unknown scope "u"}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f32]
  machine.unit @u
  machine.dma @d unit @u from [@dram] to [@u] dims 1 latency 0 row_overhead 0 outstanding 1
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{dma "d": "s" cannot be both read and written by one engine}}
  machine.dma @d unit @u from [@s] to [@s] dims 1 latency 0 row_overhead 0 outstanding 1
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{dma "d": from must name at least one scope, or "dram"}}
  machine.dma @d unit @u from [] to [@s] dims 1 latency 0 row_overhead 0 outstanding 1
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{dma "d": max_count has 2 numbers, but descriptors have 1 dims}}
  machine.dma @d unit @u from [@dram] to [@s] dims 1 max_count [4, 4] latency 0 row_overhead 0 outstanding 1
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{dma "d": latency must be at least 0, but is -1}}
  machine.dma @d unit @u from [@dram] to [@s] dims 1 latency -1 row_overhead 0 outstanding 1
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{dma "d": outstanding must be at least 1, but is 0}}
  machine.dma @d unit @u from [@dram] to [@s] dims 1 latency 0 row_overhead 0 outstanding 0
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{dma "d": the rule of convert must be one of truncate, saturate}}
  machine.dma @d unit @u from [@dram] to [@s] dims 1 latency 0 row_overhead 0 outstanding 1 convert {from = i8, to = f32, rule = "round"}
}

// -----

// expected-error @below {{dma "d": scope "s" holds f32, not i8}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f32]
  machine.unit @u
  machine.dma @d unit @u from [@dram] to [@s] dims 1 latency 0 row_overhead 0 outstanding 1 convert {from = f32, to = i8, rule = "truncate"}
}

// -----

// expected-error @below {{queue from "u" to "v": unknown unit "v"}}
machine.target @m frequency 1 {
  machine.unit @u
  machine.queue from @u to @v capacity 1 on_full "block"
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{queue from "u" to "u": a queue must join two different units}}
  machine.queue from @u to @u capacity 1 on_full "block"
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{queue from "u" to "v": on_full must be one of error, block}}
  machine.queue from @u to @v capacity 1 on_full "drop"
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{queue from "u" to "v": initial 2 exceeds the capacity, 1}}
  machine.queue from @u to @v capacity 1 on_full "block" initial 2
}

// -----

// expected-error @below {{queue from "u" to "v": these two units are joined in this direction already}}
machine.target @m frequency 1 {
  machine.unit @u
  machine.unit @v
  machine.queue from @u to @v capacity 1 on_full "block"
  machine.queue from @u to @v capacity 2 on_full "block"
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": an intrinsic names either the unit or the dma that performs it}}
  machine.intrinsic @f operands [x, y] shape {n = 4} {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": an intrinsic of a unit needs ii}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": ii has no meaning on a dma: it costs what the transfer costs}}
  machine.intrinsic @f dma @d operands [x, y] shape {n = 4} ii 1 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": operands has 1 names, but the behaviour 2 operands}}
  machine.intrinsic @f unit @u operands [x] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": operand "x" is named twice}}
  machine.intrinsic @f unit @u operands [x, x] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": operand "y" must have strides of dense, row, granule, but has loose}}
  machine.intrinsic @f unit @u operands [x, y loose] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": shape has 2 dims, but the behaviour 1 loops}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4, m = 1} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": dim "n" has an empty range, 4 to 2}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = [4, 2]} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": dim "n" must be at least 1, but is 0}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 0} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": dim "n" of an intrinsic of a unit must be bounded}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = ?} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": the behaviour takes no immediate, but imm_bits is given}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 imm_bits 8 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": the behaviour must be exactly one linalg.generic}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">):
    %c = arith.constant 0.0 : f32
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": the behaviour must use each operand once, in their order}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%y : memref<?xf32, "s">) outs(%x : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": operand "x" must have dynamic dims only, but is memref<4xf32, "s">}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<4xf32, "s">, %y: memref<4xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<4xf32, "s">) outs(%y : memref<4xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

// expected-error @below {{intrinsic "f": operand "x" is off chip, where only a dma reaches}}
machine.target @m frequency 1 {
  machine.scope @s size 64 granule 4 dtypes [f32]
  machine.unit @u
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32>, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32>) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": operand "x" is off chip, which is written as no memory space}}
  machine.intrinsic @f dma @d operands [x, y] shape {n = ?} {
  ^bb0(%x: memref<?xf32, "dram">, %y: memref<?xf32, "dram">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "dram">) outs(%y : memref<?xf32, "dram">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

machine.target @m frequency 1 {
  // expected-error @below {{intrinsic "f": operand "x" must name its scope by a string, but is memref<?xf32, 1 : i32>}}
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, 1 : i32>, %y: memref<?xf32, 1 : i32>):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, 1 : i32>) outs(%y : memref<?xf32, 1 : i32>) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

// expected-error @below {{intrinsic "f": unknown unit "u"; known here: none}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f32]
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

// expected-error @below {{intrinsic "f": unknown scope "s"; known here: t, dram}}
machine.target @m frequency 1 {
  machine.scope @t size 256 granule 16 dtypes [f32]
  machine.unit @u
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

// expected-error @below {{intrinsic "f": scope "s" holds f16, not f32}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f16]
  machine.unit @u
  machine.intrinsic @f unit @u operands [x, y] shape {n = 4} ii 1 depth 0 {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

// expected-error @below {{intrinsic "f": operand "x" is in "s", but dma "d" reads dram}}
machine.target @m frequency 1 {
  machine.scope @s size 256 granule 16 dtypes [f32]
  machine.unit @u
  machine.dma @d unit @u from [@dram] to [@s] dims 1 latency 0 row_overhead 0 outstanding 1
  machine.intrinsic @f dma @d operands [x, y] shape {n = ?} {
  ^bb0(%x: memref<?xf32, "s">, %y: memref<?xf32, "s">):
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32, "s">) outs(%y : memref<?xf32, "s">) {
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
  }
}

// -----

// expected-error @below {{the frequency of a machine must be at least 1 MHz}}
machine.target @m frequency 0 {
  machine.unit @u
}

// -----

// expected-error @below {{expected a single block, but got 0 blocks}}
machine.target @m frequency 1 {
}

// -----

// expected-error @below {{func.func is no part of a machine}}
machine.target @m frequency 1 {
  func.func private @f()
}

// -----

// expected-error @below {{unit "u" must be directly in a machine.target}}
machine.unit @u
