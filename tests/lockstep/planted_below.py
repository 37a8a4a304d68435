# SPDX-License-Identifier: Apache-2.0
"""The bugs below the tensor level, pass by pass: what is wrong, where, and what is replaced in the text by what."""

from __future__ import annotations

from planted import Bug

LOOP = (
    Bug(
        "dense",
        "tensor-to-loop",
        "a tile is written where another belongs",
        "clamp",
        r"(memref.subview %relu\[)(%\w+), (%\w+)",
        r"\1\3, \2",
    ),
    Bug("dense", "tensor-to-loop", "a result goes to another buffer", "less", r"(call @fused_1_1\()%0", r"\1%r"),
    Bug(
        "overwritten", "tensor-to-loop", "a copy is missing", "square", r"mem.copy %e to %both", "mem.copy %x to %both"
    ),
    Bug("dense", "promote", "a copy of the wrong tile", "first", r"(memref.subview %a\[)%\w+, (%\w+)", r"\1\2, \2"),
    Bug("dense", "promote", "a copy is missing", "first", r" *mem.copy %a_\w+ to %a_\w+ [^\n]*\n", ""),
    Bug(
        "dense",
        "promote",
        "a result is not copied back",
        "second",
        r' *mem.copy %\w+ to %\w+ : memref<8x8xf32, "acc"> to [^\n]*\n',
        "",
    ),
    Bug(
        "levels",
        "promote-levels",
        "each iteration reads the first tile",
        "fetch",
        r"mem.copy %x_1\[%i\]",
        "mem.copy %x_1[%zero]",
    ),
    Bug("levels", "promote-levels", "the outer copy is missing", "fetch", r"mem.copy %x to %x_1[^\n]*\n", ""),
    Bug("dense", "tensorize", "another intrinsic", "clamp", r'library_call = "mvout_relu"', 'library_call = "mvout"'),
    Bug(
        "dense",
        "tensorize",
        "operands of the intrinsic swapped",
        "first",
        r"ins\((%a_\w+), (%b_\w+) :",
        r"ins(\2, \1 :",
    ),
    Bug(
        "kept", "mem-promote", "a kernel leaves out its copy", "put", r"mem.copy %x to %y : memref<16xf32> [^\n]*\n", ""
    ),
    Bug(
        "resident",
        "mem-promote",
        "one buffer is filled with the other's contents",
        "first",
        r"call @fill\(%w, %w_1\)",
        "call @fill(%x, %w_1)",
    ),
    Bug("dense", "multi-buffer", "one ring for two buffers", "first", r"mem.slot %b_ring", "mem.slot %a_ring"),
    Bug("dense", "mem-plan", "two buffers share bytes", "first", r"(%b_ring = mem.ring 2 at )\d+", r"\g<1>256"),
    Bug("dense", "mem-plan", "an offset is not aligned", "first", r"(%b_ring = mem.ring 2 at )\d+", r"\g<1>520"),
    Bug(
        "dense", "mem-plan", "a buffer ends behind its scope", "first", r"(%b_ring = mem.ring 2 at )\d+", r"\g<1>262000"
    ),
    Bug(
        "image",
        "mem-plan",
        "two live buffers off chip share bytes",
        "rest",
        r"(%e_NHWC = mem.buffer at )(\d+)((?:.*\n)*? *%kk_NHWC = mem.buffer at )\d+",
        r"\1\2\3\2",
    ),
)
"""In passes of the loop level, and on the way there."""

ACCEL = (
    Bug(
        "dense", "loop-to-accel", "a command does not wait for a load", "first", r"(@gemm .* after\(%\w+), %\w+", r"\1"
    ),
    Bug(
        "dense",
        "loop-to-accel",
        "a store does not wait for the command",
        "clamp",
        r"(@mvout_relu .*) after\(%\w+\)",
        r"\1",
    ),
    Bug("dense", "loop-to-accel", "a slot is filled again too early", "first", r"(@zero_acc .*) after\(%\w+\)", r"\1"),
    Bug(
        "dense",
        "loop-to-accel",
        "the extents end one early",
        "first",
        r"@gemm extents \[8, 8, 8\]",
        "@gemm extents [8, 8, 7]",
    ),
    Bug("dense", "loop-to-accel", "the kernel does not wait for its end", "clamp", r"accel.barrier\n", "\n"),
    Bug(
        "levels",
        "loop-to-accel",
        "each iteration loads the first tile",
        "fetch",
        r"accel.dma %x_1\[%i\]",
        "accel.dma %x_1[%zero]",
    ),
    Bug(
        "dense", "accel-pipeline", "a command does not wait for a load", "first", r"(@gemm .* after\(%\w+), %\w+", r"\1"
    ),
    Bug("dense", "accel-pipeline", "tokens of two rounds swapped", "clamp", r"(@mvout_relu .*) after\(%\w+\)", r"\1"),
    Bug(
        "dense",
        "accel-pipeline",
        "a slot is filled again too early",
        "first",
        r"(accel.dma %a_\w+ to %a_\w+ on \"mvin\") after\(%\w+\)",
        r"\1",
    ),
    Bug(
        "scale",
        "accel-virtual-threads",
        "two threads share a buffer",
        "shift",
        r"(%acc_1 = mem.buffer at )\d+",
        r"\g<1>0",
    ),
    Bug(
        "scale",
        "accel-virtual-threads",
        "both threads take the same iteration",
        "in",
        r"memref.subview %x\[%i_1",
        "memref.subview %x[%i",
    ),
    Bug("scale", "accel-virtual-threads", "both threads wait for the first", "out", r"after\(%u_1\)", "after(%u)"),
    Bug(
        "scale",
        "accel-assign-queues",
        "a push and its pop are missing",
        "out",
        r" *accel.push \"compute\" to \"store\"([^\n]*\n)(.*\n)*? *accel.pop \"store\" from \"compute\"[^\n]*\n",
        "",
    ),
    Bug(
        "scale",
        "accel-assign-queues",
        "the queue is not primed",
        "in",
        r" *accel.push \"store\" to \"compute\"[^\n]*\n",
        "",
    ),
    Bug(
        "scale",
        "accel-assign-queues",
        "the queue is not drained",
        "out",
        r" *accel.pop \"compute\" from \"store\"[^\n]*\n",
        "",
        2,
    ),
    Bug(
        "scale",
        "accel-assign-queues",
        "a pop comes after its command",
        "in",
        r"( *accel.pop \"compute\" from \"store\"[^\n]*\n)( *%t = [^\n]*\n)",
        r"\2\1",
    ),
)
"""In passes of the accel level, and on the way there."""

SLOW = (
    Bug("resident", "mem-promote", "what is read again was not filled", "first", r"func.call @fill\(%w, [^\n]*\n", ""),
    Bug(
        "dense",
        "loop-to-accel",
        "the maps of two operands swapped",
        "first",
        r"(@gemm .* maps \[)(affine_map<[^>]*>[^>]*>), (affine_map<[^>]*>[^>]*>)",
        r"\1\3, \2",
    ),
    Bug(
        "dense",
        "loop-to-accel",
        "a load from another address",
        "first",
        r"(memref.subview %a\[)%\w+, (%\w+)",
        r"\1\2, \2",
    ),
    Bug(
        "dense",
        "accel-pipeline",
        "the last iteration uses the slot of another",
        "bias",
        r"(mem.slot %matmul_ring\[)%\w+",
        r"\1%iteration",
        8,
    ),
    Bug(
        "dense",
        "accel-pipeline",
        "the first load of the skewed loop is another",
        "first",
        r"(memref.subview %a\[)(%\w+), (%\w+)",
        r"\1\3, \3",
    ),
    Bug(
        "dense",
        "accel-pipeline",
        "tokens of the loop before are dropped",
        "first",
        r"(iter_args\(%\w+ = )%\w+(, %\w+ = %\w+, %\w+ = )(%\w+)(\) -> \((?:!accel.token(?:, )?){3}\))",
        r"\1\3\2\3\4",
    ),
    Bug("dense", "accel-pipeline", "two rings share bytes", "first", r"(%b_ring = mem.ring 2 at )\d+", r"\g<1>256"),
    Bug("dense", "cse", "two loads taken for one", "first", r"(@gemm .* after\(%\w+), %\w+", r"\1"),
)
"""More of the last kind, which take about a second each."""
