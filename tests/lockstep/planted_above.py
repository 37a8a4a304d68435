# SPDX-License-Identifier: Apache-2.0
"""The bugs down to the tensor level, pass by pass: what is wrong, where, and what is replaced in the text by what."""

from __future__ import annotations

from planted import Bug

GRAPH = (
    Bug("image", "simplify", "operands of a subtraction swapped", "rest", r"(graph.sub )(%\w+), (%\w+)", r"\1\3, \2"),
    Bug("image", "simplify", "a padding left out", "pool", r"pads \[1, 1, 0, 0\]", "pads [0, 0, 1, 1]"),
    Bug(
        "image", "fold-batch-norm", "the shift has another sign", "norm", r"graph.sub %m, %mean", "graph.sub %mean, %m"
    ),
    Bug(
        "image",
        "fold-batch-norm",
        "the deviation for the variance",
        "norm",
        r"graph.div %m, %deviation",
        "graph.div %m, %m",
    ),
    Bug("image", "fold-constants", "a constant is off by one", "norm", r"dense<-6.0", "dense<-5.0"),
    Bug("image", "layout", "an image is turned on its side", "rest", r"(graph.sub )(%\w+), (%\w+)", r"\1\3, \2"),
    Bug(
        "image",
        "graph-fuse",
        "an operand of a group taken twice",
        "extra",
        r"(graph.fused\(%\w+, %\w+, )(%\w+), (%\w+)",
        r"\1\2, \2",
    ),
    Bug("products", "value-cse", "two products taken for one", "right", r"matmul %g3, %u", "matmul %g3, %matrix"),
    Bug("products", "fold-scale", "the scale is lost", "scaled", r"matmul %g3, %matrix", "matmul %g3, %w"),
    Bug(
        "products",
        "reorder-matmuls",
        "the wrong two multiplied first",
        "vector",
        r"graph.matmul %y, %v",
        "graph.matmul %g, %v",
    ),
    Bug(
        "products", "transpose-operands", "a permutation that permutes nothing", "gemm", r"perm \[1, 0\]", "perm [0, 1]"
    ),
    Bug(
        "products",
        "combine-matmuls",
        "both siblings take the first part",
        "right",
        r"starts \[1, 0, 0\]",
        "starts [0, 0, 0]",
    ),
    Bug("attention", "fuse-attention", "the scale is inverted", "attention", r"scale 0.5", "scale 2.0"),
    Bug("attention", "fuse-attention", "keys for values", "attention", r"%q, %k, %v scale", "%q, %v, %v scale"),
    Bug("integers", "integer-arithmetic", "the zero point is off by one", "output", r"dense<-8>", "dense<-7>"),
    Bug(
        "integers",
        "integer-arithmetic",
        "the factor of another layer",
        "product",
        r"dense<1.250000e-01>",
        "dense<2.500000e-01>",
    ),
    Bug(
        "half",
        "storage-type",
        "operands of a difference swapped",
        "less",
        r"graph.sub %x_1, %y_1",
        "graph.sub %y_1, %x_1",
    ),
    Bug(
        "half", "storage-type", "the wrong value is cast", "again", r"graph.fused\(%p, %y_f16\)", "graph.fused(%p, %p)"
    ),
)
"""In passes of the graph level."""

TENSOR = (
    Bug(
        "dense",
        "graph-to-tensor",
        "a factor transposed",
        "first",
        r"\(d0, d1, d2\) -> \(d2, d1\)",
        "(d0, d1, d2) -> (d1, d2)",
    ),
    Bug(
        "dense",
        "graph-to-tensor",
        "sums begin at one",
        "first",
        r"constant 0.0+e\+00 : f32 loc\(\"first",
        'constant 1.0 : f32 loc("first',
    ),
    Bug(
        "dense",
        "graph-to-tensor",
        "a clamp from below becomes one from above",
        "clamp",
        r"arith.maximumf",
        "arith.minimumf",
    ),
    Bug("image", "graph-to-tensor", "a window moves along one dim only", "norm", r"\(d1 \+ d4\)", "(d1 + d5)"),
    Bug(
        "image",
        "graph-to-tensor",
        "a pad on the other side",
        "pool",
        r"low\[0, 1, 1, 0\] high\[0, 0, 0, 0\]",
        "low[0, 0, 0, 0] high[0, 1, 1, 0]",
    ),
    Bug(
        "dense",
        "assign-devices",
        "arguments of a call swapped",
        "second",
        r"(call @fused_1_0\()(%\w+), (%\w+)",
        r"\1\3, \2",
    ),
    Bug(
        "image",
        "fuse-elementwise",
        "operands swapped in a fused body",
        "rest",
        r"(arith.subf )(%\w+), (%\w+)",
        r"\1\3, \2",
    ),
    Bug(
        "dense",
        "tile",
        "the last tile of a reduction is missing",
        "first",
        r"constant 16 : index",
        "constant 8 : index",
        2,
    ),
    Bug(
        "dense",
        "tile",
        "every tile reads the first block",
        "first",
        r"(tensor.extract_slice %a\[%\w+, )%\w+",
        r"\g<1>0",
    ),
    Bug(
        "dense",
        "tile",
        "tiles are stored transposed",
        "clamp",
        r"(tensor.insert_slice %\w+ into %\w+\[)(%\w+), (%\w+)",
        r"\1\3, \2",
    ),
    Bug(
        "dense",
        "tile",
        "the epilogue adds the sums to themselves",
        "bias",
        r'arith.addf (%\w+), %\w+ : f32 loc\("bias"',
        r'arith.addf \1, \1 : f32 loc("bias"',
    ),
    Bug(
        "dense",
        "licm",
        "a slice is hoisted with the index of the loop outside",
        "first",
        r"(tensor.extract_slice %b\[)(%\w+), (%\w+)",
        r"\1\3, \3",
    ),
    Bug("dense", "value-cse", "two slices taken for one", "first", r"ins\((%a_\w+), (%b_\w+) :", r"ins(\1, \1 :"),
    Bug("overwritten", "insert-copies", "a copy is missing", "square", r"outs\(%twice_2 :", "outs(%e :"),
    Bug(
        "overwritten",
        "insert-copies",
        "the copy is read in place of the original",
        "both",
        r"ins\(%twice :",
        "ins(%more :",
    ),
)
"""In passes of the tensor level, and on the way there."""
