# SPDX-License-Identifier: Apache-2.0
"""What MLIR prints we read, and what we print of it MLIR reads as the same; what neither reads is refused in place."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from xdsl.dialects import affine
from xdsl.parser import Parser
from xdsl.targets.mlir import MLIRTarget

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.verification import verify_module
from penstock.lowering.from_text import SourceText, parse_text, read_text, split_text
from penstock.lowering.to_text import module_text
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

MLIR_OPT = shutil.which("mlir-opt-19")


def _pieces(name: str) -> dict[str, str]:
    """The pieces of a file beside this one, by the comments that they begin with."""
    pieces = split_text(read_text(Path(__file__).with_name(name)))[1:]
    return {piece.text.split("\n")[0].removeprefix("// "): piece.text for piece in pieces}


CHUNKS, NETWORKS = _pieces("mlir_chunks.mlir"), _pieces("mlir_networks.mlir")

GENERIC_ONLY = {
    "memref", "views", "globals", "parallel", "affine_max", "affine_if", "affine_parallel", "layouts of memref",
}  # fmt: skip
"""Chunks with an operation that xDSL reads in generic form only, or in the custom form of a later MLIR."""

LATER_FORM = {"buffers"}
"""Chunks with an operation whose custom form is that of a later MLIR."""


def reread(text: str, generic: bool) -> str:
    ctx = make_context(allow_unregistered=True)
    module = parse_text(ctx, SourceText("<test>", text)).module
    module.verify()
    verify_module(module)
    return module_text(ctx, module, MLIRTarget(print_generic_format=generic))


def mlir_opt(text: str, *flags: str) -> str:
    assert MLIR_OPT is not None
    command = [MLIR_OPT, "--allow-unregistered-dialect", *flags]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(MLIR_OPT is None, reason="mlir-opt-19 is not installed")
@pytest.mark.parametrize("name", CHUNKS)
def test_mlir_reads_what_we_print_of_its_text(name: str) -> None:
    custom, generic = mlir_opt(CHUNKS[name]), mlir_opt(CHUNKS[name], "--mlir-print-op-generic")
    expected = mlir_opt(CHUNKS[name])
    assert mlir_opt(reread(generic, generic=True)) == expected
    if name in LATER_FORM:
        return
    if name in GENERIC_ONLY:
        with pytest.raises(UserError, match=r"^<test>:.*(does not have a custom format|Expected 'to')"):
            reread(custom, generic=False)
        custom = generic
    ours = reread(custom, generic=False)
    assert reread(ours, generic=False) == ours
    assert mlir_opt(ours) == expected


@pytest.mark.skipif(MLIR_OPT is None, reason="mlir-opt-19 is not installed")
@pytest.mark.parametrize(
    ("level", "machine"), [("graph", None), ("tensor", None), ("loop", None), ("accel", "gemmini-fp32")]
)
@pytest.mark.parametrize("network", NETWORKS)
def test_mlir_reads_what_the_compiler_emits(network: str, level: str, machine: str | None) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("<test>", NETWORKS[network])).module
    if machine is not None:
        attach_machine(module, machine)
    run_passes(ctx, module, read_pipeline(",".join(pipeline(level, machine))))
    generic = MLIRTarget(print_generic_format=True)
    theirs = mlir_opt(module_text(ctx, module, generic), "--mlir-print-op-generic")
    assert mlir_opt(reread(theirs, generic=True), "--mlir-print-op-generic") == theirs


SEMI_AFFINE: dict[str, Callable[[int, int], int]] = {
    "d0 floordiv s0": lambda d, s: d // s,
    "d0 ceildiv s0": lambda d, s: -(-d // s),
    "d0 mod s0": lambda d, s: d % s,
    "d0 * s0": lambda d, s: d * s,
    "s0 * d0": lambda d, s: d * s,
    "-(d0 * s0) + 3": lambda d, s: 3 - d * s,
    "d0 - d0 * s0": lambda d, s: d - d * s,
    "(d0 * 2) mod (s0 + 1)": lambda d, s: d * 2 % (s + 1),
    "100 floordiv s0": lambda d, s: 100 // s,
    "d0 floordiv (s0 * s0)": lambda d, s: d // (s * s),
}  # fmt: skip


@pytest.mark.parametrize("expression", SEMI_AFFINE)
def test_a_symbol_may_be_a_factor_or_a_divisor(expression: str) -> None:
    text = f"""func.func @f(%i: index, %n: index) -> index {{
  %0 = affine.apply affine_map<(d0)[s0] -> ({expression})> (%i)[%n]
  func.return %0 : index
}}"""
    again = reread(text, generic=False)
    assert reread(again, generic=False) == again
    module = Parser(make_context(), again).parse_module()
    [apply] = [op for op in module.walk() if isinstance(op, affine.ApplyOp)]
    for dim, symbol in [(0, 1), (7, 3), (-7, 3), (12, 4)]:
        assert apply.map.data.eval([dim], [symbol]) == (SEMI_AFFINE[expression](dim, symbol),)


REFUSED = {
    "d0 * d0": "1:41: error: not affine: one of two factors has to be a constant or made of symbols",
    "s0 mod (s0 + d0)": "1:41: error: not affine: a divisor has to be a constant or made of symbols",
    "d0 mod 0": "1:41: error: the divisor is 0, and has to be at least 1",
    "7 floordiv (3 - 3)": "1:40: error: the divisor is 0, and has to be at least 1",
    "d0 ceildiv -1": "1:41: error: the divisor is -1, and has to be at least 1",
    "d0 + 99999999999999999999": "1:43: error: 99999999999999999999 does not fit into 64 bits",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_not_affine_is_refused_at_its_operator(expression: str) -> None:
    with pytest.raises(UserError) as refusal:
        reread(f'"u.x"() {{a = affine_map<(d0)[s0] -> ({expression})>}} : () -> ()', generic=False)
    assert str(refusal.value) == f"<test>:{REFUSED[expression]}"


INVALID = {
    '%0 = arith.cmpf olt, %v, %v : vector<4xf32>\n"u.x"(%0) : (vector<4xi1>) -> ()': None,
    '%0 = "arith.cmpf"(%v, %v) <{predicate = 0 : i64}> : (vector<4xf32>, vector<4xf32>) -> i1': "results in i1",
    '%0 = "arith.select"(%b, %v, %v) : (vector<2xi1>, vector<4xf32>, vector<4xf32>) -> vector<4xf32>': "selects by",
    '%0 = "arith.extf"(%v) : (vector<4xf32>) -> vector<5xf64>': "other shape",
    '%0 = "arith.truncf"(%f) <{roundingmode = 5 : i32}> : (f32) -> f16': "the rounding mode",
    "%0 = arith.index_cast %i : index to index": "one has to be of index",
    "%0 = tensor.expand_shape %t [] output_shape [2] : tensor<f32> into tensor<2xf32>": "rank 0",
    "%0 = bufferization.to_tensor %m : memref<4xf32> to tensor<5xf32>": "is not the tensor of",
    '"memref.copy"(%m, %n) : (memref<4xf32>, memref<5xf32>) -> ()': "the same shape",
    '"memref.dma_start"(%m, %i, %n, %i) : (memref<4xf32>, index, memref<5xf32>, index) -> ()': "indices after",
    '%0 = "linalg.index"() <{dim = 0 : i64}> : () -> index': "expects parent op",
}


@pytest.mark.parametrize("operation", INVALID)
def test_what_is_read_of_mlir_is_verified(operation: str) -> None:
    values = "%v: vector<4xf32>, %b: vector<2xi1>, %f: f32, %i: index, %t: tensor<f32>, %m: memref<4xf32>"
    text = f"func.func @f({values}, %n: memref<5xf32>) {{\n{operation}\nfunc.return\n}}"
    if (message := INVALID[operation]) is None:
        reread(text, generic=False)
        return
    with pytest.raises(Exception, match=message):
        reread(text, generic=False)


@pytest.mark.parametrize(
    "location",
    ['"a.mlir":1:2', '"n"("a.mlir":1:2)', 'fused<"m">["a.mlir":1:2, "n"]', 'callsite("a" at "b")'],
)
def test_locations_are_read_and_printed(location: str) -> None:
    text = f'"u.x"() ({{\n^bb0(%a: i32 loc({location})):\n  "u.y"() : () -> ()\n}}) : () -> () loc({location})'
    ctx = make_context(allow_unregistered=True)
    module = parse_text(ctx, SourceText("<test>", text)).module
    printed = module_text(ctx, module, MLIRTarget(print_debuginfo=True))
    assert printed.count(f"loc({location})") == 2


def test_a_region_of_an_unregistered_operation_sees_the_values_around_it() -> None:
    text = """builtin.module {
  func.func @f(%a: index) {
    "u.x"() ({
      "u.y"(%a) : (index) -> ()
    }) : () -> ()
    func.return
  }
}
"""
    assert reread(text, generic=False) == text


def test_a_fault_of_an_unregistered_operation_says_its_name() -> None:
    text = '"u.y"(%a) : (index) -> ()\n%a = "u.x"() : () -> (index)'
    with pytest.raises(Exception, match=r"'u.y' uses %a, whose definition does not dominate this use"):
        reread(text, generic=False)


def test_an_unregistered_operation_is_not_taken_for_pure() -> None:
    from penstock.passes.value_dce import ValueDcePass

    ctx = make_context(allow_unregistered=True)
    module = parse_text(ctx, SourceText("<test>", '%0 = "u.x"() : () -> index')).module
    ValueDcePass().apply(ctx, module)
    assert len(module.body.block.ops) == 1


def test_the_types_of_several_results_stand_in_parentheses_or_not() -> None:
    text = """func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0, %1 = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"], tag = 1 : i32} outs(%x, %y : tensor<8xf32>, tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32):
    linalg.yield %b, %a : f32, f32
  } -> TYPES
  func.return %0, %1 : tensor<8xf32>, tensor<8xf32>
}"""  # noqa: E501
    listed, bare = (
        reread(text.replace("TYPES", types), generic=False)
        for types in ("(tensor<8xf32>, tensor<8xf32>)", "tensor<8xf32>, tensor<8xf32>")
    )
    assert listed == bare
    assert "} -> (tensor<8xf32>, tensor<8xf32>)" in listed
    assert "attrs = {tag = 1 : i32}" in listed.replace("  ", " ")
    assert reread(listed, generic=False) == listed


def test_the_condition_of_an_affine_if_is_an_attribute_and_no_property() -> None:
    text = """"affine.if"() ({
  "affine.yield"() : () -> ()
}, {
}) {condition = affine_set<() : (0 == 0)>} : () -> ()"""
    assert "}) {condition = affine_set<() : (0 == 0)>} : () -> ()" in reread(text, generic=True)


OUT_OF_BOUNDS = {
    "i99999999999999999999": "<test>:1:14: error: an integer type has at most 16777215 bits",
    "tensor<4xi16777216>": "<test>:1:23: error: an integer type has at most 16777215 bits",
    "tensor<9223372036854775808xf32>": "<test>:1:21: error: 9223372036854775808 does not fit into 64 bits",
    "memref<2xf32, strided<[99999999999999999999]>>": "<test>:1:37: error: 99999999999999999999 does not fit into 64",
    "array<i64: -99999999999999999999>": "<test>:1:25: error: -99999999999999999999 does not fit into 64 bits",
}


@pytest.mark.parametrize("written", OUT_OF_BOUNDS)
def test_an_integer_out_of_bounds_is_refused_where_it_stands(written: str) -> None:
    with pytest.raises(UserError) as refusal:
        reread(f'"u.x"() {{a = {written}}} : () -> ()', generic=False)
    assert str(refusal.value).startswith(OUT_OF_BOUNDS[written])


def test_a_value_that_only_a_block_argument_defines_is_named_where_it_is_used() -> None:
    text = """func.func @f(%n: index) {
  %c0 = arith.constant 0 : index
  %r = scf.for %i = %c0 to %n step %n iter_args(%t = %t) -> (f32) {
    scf.yield %t : f32
  }
  func.return
}"""
    with pytest.raises(UserError) as refusal:
        reread(text, generic=False)
    assert str(refusal.value).startswith("<test>:3:54: error: use of the undefined value %t")


def test_text_that_is_nested_without_end_is_refused_with_a_place() -> None:
    with pytest.raises(UserError, match=r"^<test>:1:1: error: it is nested too deeply"):
        reread(f'"u.x"() {{a = {"[" * 3000}}} : () -> ()', generic=False)


def test_what_a_builder_takes_for_granted_is_refused_with_a_place() -> None:
    text = "%y = linalg.matmul ins(%x : tensor<2x2xf32>) outs(%x : tensor<2x2xf32>) -> tensor<2x2xf32>"
    with pytest.raises(UserError, match=r"^<test>:2:20: error: expects 3 operands, and has 2"):
        reread(f'%x = "u.x"() : () -> tensor<2x2xf32>\n{text}', generic=False)
