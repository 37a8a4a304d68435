# SPDX-License-Identifier: Apache-2.0
"""What xDSL's passes do that do not say it themselves; goes where they do (as of xDSL 0.74)."""

from __future__ import annotations


def _lowers(what: str, to: str) -> str:
    return f"Lower {what} to {to}."


DOCUMENTATION: dict[str, str] = {
    "apply-eqsat-pdl-interp": "Apply the `pdl_interp` matcher in the module to its e-graphs.",
    "apply-pdl": """Apply the `pdl.pattern` operations in the module to its other operations.

The patterns are interpreted, and tried greedily until none matches any more.""",
    "apply-pdl-interp": "Apply the `pdl_interp` matcher in the module to its other operations.",
    "canonicalize-dmp": "Apply the canonicalization patterns of the dialect `dmp`.",
    "convert-arith-to-riscv": _lowers("`arith`", "`riscv` on virtual registers"),
    "convert-arith-to-riscv-snitch": _lowers("`arith`", "the packed instructions of Snitch"),
    "convert-arith-to-x86": _lowers("`arith`", "`x86` on virtual registers"),
    "convert-func-to-riscv-func": _lowers("`func`", "`riscv_func`, with arguments and results in registers"),
    "convert-func-to-x86-func": _lowers("`func`", "`x86_func`, with arguments and results in registers"),
    "convert-linalg-to-memref-stream": _lowers("`linalg.generic` on memrefs", "`memref_stream.generic`"),
    "convert-memref-to-riscv": _lowers("`memref`", "loads, stores and pointer arithmetic of `riscv`"),
    "convert-pdl-interp-to-eqsat-pdl-interp": "Make a `pdl_interp` matcher one that matches e-graphs.",
    "convert-print-format-to-riscv-debug": _lowers("`printf.print_format`", "`riscv_debug.printf`"),
    "convert-ptr-to-llvm": _lowers("`ptr_xdsl`", "`llvm`"),
    "convert-ptr-to-riscv": _lowers("`ptr_xdsl`", "`riscv`"),
    "convert-ptr-to-x86": _lowers("`ptr_xdsl`", "`x86`"),
    "convert-ptr-type-offsets": "Replace the offsets of `ptr_xdsl` that are numbers of elements by constants in bytes.",
    "convert-riscv-scf-to-riscv-cf": _lowers("loops of `riscv_scf`", "branches of `riscv_cf`"),
    "convert-scf-to-riscv-scf": _lowers("`scf`", "`riscv_scf`, on registers"),
    "convert-scf-to-x86-scf": _lowers("`scf`", "`x86_scf`, on registers"),
    "convert-snitch-stream-to-snitch": _lowers("`snitch_stream`", "the instructions that set streams up"),
    "convert-stencil-to-csl-stencil": _lowers("`stencil` and `dmp`", "`csl_stencil`, which a Cerebras wafer runs"),
    "convert-stencil-to-ll-mlir": _lowers("`stencil`", "loops of `scf` on memrefs"),
    "convert-vector-to-ptr": _lowers("loads and stores of `vector`", "`ptr_xdsl`"),
    "convert-vector-to-x86": _lowers("`vector`", "vector instructions of `x86`"),
    "convert-x86-scf-to-x86": _lowers("loops of `x86_scf`", "labels and jumps of `x86`"),
    "cse": """Remove operations that compute what one that dominates them has computed.

Two operations are the same if their names, operands, properties, attributes and result types are. Pure operations are
merged, and those that only read memory where nothing between the two writes. What has regions is merged only where
these are equal. Unused operations without effects are removed, too. On the graph and tensor levels `value-cse`
also merges `linalg` on tensors, of which xDSL does not know that it has no effects.

Before:
```mlir
func.func @f(%x: i32) -> i32 {
  %a = arith.addi %x, %x : i32
  %b = arith.addi %x, %x : i32
  %c = arith.muli %a, %b : i32
  func.return %c : i32
}
```
After (`cse`):
```mlir
func.func @f(%x: i32) -> i32 {
  %a = arith.addi %x, %x : i32
  %c = arith.muli %a, %a : i32
  func.return %c : i32
}
```""",
    "dce": """Remove operations without effects whose results nothing uses, and blocks that are not reached.

Operations that depend on each other only, around a loop, are removed together. What declares no effects is taken to
have some: `value-dce` also removes `linalg` on tensors.

Before:
```mlir
func.func @f(%x: i32) -> i32 {
  %a = arith.addi %x, %x : i32
  %b = arith.muli %a, %a : i32
  func.return %x : i32
}
```
After (`dce`):
```mlir
func.func @f(%x: i32) -> i32 {
  func.return %x : i32
}
```""",
    "dmp-to-mpi": _lowers("the exchanges of borders of `dmp`", "messages of `mpi`"),
    "eqsat-serialize-egraph": "Print the e-graph of the module as JSON.",
    "frontend-desymrefy": "Replace variables of `symref`, which xDSL's Python frontend writes, by values.",
    "gpu-map-parallel-loops": "Map nested `scf.parallel` loops to the blocks and threads of a GPU, by an attribute.",
    "hls-convert-stencil-to-ll-mlir": _lowers("`stencil`", "loops and streams for high-level synthesis"),
    "jax-use-donated-arguments": "Let results of a function be written to the arguments that JAX donates.",
    "loop-hoist-memref": """Move the load and the store of an element that a loop updates out of the loop.

A `memref.load` and the only `memref.store` to the same element in the body of a `scf.for`, whose indices do not
depend on the loop, become one load before it, a value that it carries, and one store after it.""",
    "lower-affine": """Lower `affine` to `scf`, `memref` and `arith`.

`affine.min`, `affine.if` and `affine.parallel` stay as they are.""",
    "lower-hls": _lowers("`hls`", "calls and structures of `llvm` that synthesis knows"),
    "lower-mpi": _lowers("`mpi`", "calls of an MPI library"),
    "lower-riscv-func": _lowers("system calls and entry points of `riscv_func`", "instructions of `riscv`"),
    "memref-to-gpu": _lowers("`memref.alloc`, `dealloc` and `copy`", "those of `gpu`"),
    "printf-to-llvm": _lowers("`printf`", "calls of the C function printf"),
    "printf-to-putchar": _lowers("`printf.print_char` and `print_int`", "calls of the C function putchar"),
    "reconcile-unrealized-casts": """Remove chains of `unrealized_conversion_cast` that end in the type they began with.

Between passes that change types such casts stand where one part of the program has been converted and another has not;
with `warn-on-failure` those that are left are warned of.""",
    "replace-incompatible-fpga": "Replace operations that a synthesis tool for FPGAs does not know.",
    "scf-parallel-loop-tiling": """Tile `scf.parallel` loops.

Each becomes a parallel loop over tiles around one over the elements of a tile, whose bounds are cut at the end unless
the sizes divide.""",
    "stencil-inlining": "Inline stencils into those that use their results.",
    "stencil-tensorize-z-dimension": "Make the last dimension of a stencil one of tensors instead of loops.",
    "stencil-unroll": "Compute several neighbouring elements of a stencil in one step.",
    "x86-prologue-epilogue-insertion": "Save and restore the registers that a function has to keep, at its two ends.",
}
"""Documentation by the name of the pass: a sentence first, then what else there is to know."""
