# SPDX-License-Identifier: Apache-2.0
"""What users of mlir-opt and xdsl-opt are used to: flags, nested pipelines, instruments, reproducers."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from penstock.lowering.lexer import SourceLexer
from penstock.runtime.pass_manager import pipeline_text, read_pipeline

if TYPE_CHECKING:
    from tests.conftest import Command

TWO = (
    "func.func @f(%x: i32) -> i32 {\n  %a = arith.addi %x, %x : i32\n  %b = arith.addi %x, %x : i32\n"
    "  %c = arith.muli %a, %b : i32\n  func.return %c : i32\n}\n"
    "func.func @g(%x: i32) -> i32 {\n  %a = arith.constant dense<[1, 2, 3, 4]> : tensor<4xi32>\n"
    "  func.return %x : i32\n}\n"
)
LAYER = (
    "func.func @main(%x: tensor<8x24xf32>, %w: tensor<24x16xf32>) -> tensor<8x16xf32> {\n"
    "  %xw = graph.matmul %x, %w : (tensor<8x24xf32>, tensor<24x16xf32>) -> tensor<8x16xf32>\n"
    "  %y = graph.relu %xw : tensor<8x16xf32>\n  func.return %y : tensor<8x16xf32>\n}\n"
)


# pipelines


def test_nested_pipelines_are_read_and_written() -> None:
    text = 'func.func(cse,canonicalize),tile{sizes=4,4},any(dce),builtin.module(func.func(mem-plan{planner="exact"}))'
    assert pipeline_text(read_pipeline(text)) == text
    assert pipeline_text(read_pipeline(f" builtin.module( {text} ) ")) == text


def test_all_passes_run_on_one_function_before_the_next(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "builtin.module(func.func(cse,dce))", "--mlir-print-ir-after-all", stdin=TWO)
    heads = [line for line in finished.err.splitlines() if "IR Dump" in line]
    operations = [f"('func.func' operation: @{name})" for name in ("f", "g")]
    assert heads == [
        f"// -----// IR Dump After {name} {operation} //----- //" for operation in operations for name in ("cse", "dce")
    ]
    assert finished.out == penstock_opt("-p", "cse,dce", stdin=TWO).out


def test_a_pass_sees_no_other_function_while_it_is_nested(
    penstock_opt: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp
    from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

    seen: list[list[int]] = []

    def look(self: object, ctx: object, op: ModuleOp) -> None:
        seen.append([len(each.body.blocks) for each in op.ops if isinstance(each, FuncOp)])

    monkeypatch.setattr(CommonSubexpressionElimination, "apply", look)
    finished = penstock_opt("-p", "func.func(cse)", stdin=TWO)
    assert seen == [[1, 0], [0, 1]]
    assert finished.out == penstock_opt(stdin=TWO).out, "the bodies are back"


@pytest.mark.parametrize("what", ["rename", "erase", "body"])
def test_a_nested_pass_that_changes_what_is_around_is_refused(
    penstock_opt: Command, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    from xdsl.dialects.builtin import ModuleOp, StringAttr
    from xdsl.dialects.func import FuncOp
    from xdsl.ir import Block
    from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

    def change(self: object, ctx: object, op: ModuleOp) -> None:
        other = next(each for each in op.ops if isinstance(each, FuncOp) and each.is_declaration)
        match what:
            case "rename":
                other.attributes["changed"] = StringAttr("")
            case "erase":
                other.detach()
            case _:
                other.body.add_block(Block(arg_types=other.function_type.inputs))

    monkeypatch.setattr(CommonSubexpressionElimination, "apply", change)
    finished = penstock_opt("-p", "func.func(cse)", stdin=TWO)
    assert finished.status == 1
    assert 'error: the pass "cse" changes more than the function @f that it runs on' in finished.err


def test_what_a_nested_pass_breaks_is_repeated_by_its_reproducer(
    penstock_opt: Command, monkeypatch: pytest.MonkeyPatch, temporary_files: Path
) -> None:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import ReturnOp
    from xdsl.transforms.dead_code_elimination import DeadCodeElimination

    def breaks(self: object, ctx: object, op: ModuleOp) -> None:
        for found in [each for each in op.walk() if isinstance(each, ReturnOp)]:
            found.detach()

    monkeypatch.setattr(DeadCodeElimination, "apply", breaks)
    finished = penstock_opt("-p", "cse,func.func(cse,dce,cse),cse", "--timing", stdin=TWO)
    assert finished.status == 70
    assert 'the pass "dce" left invalid IR' in finished.err
    (written,) = temporary_files.glob("*/*")
    assert 'pipeline: "builtin.module(cse,func.func(cse,dce))"' in written.read_text()


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("func.fun(cse)", 'pass-pipeline:1:1: error: no passes can be nested in "func.fun"'),
        ("func.func(cse,csee)", 'pass-pipeline:1:15: error: there is no pass "csee"'),
        ("func.func(func.func(cse))", "pass-pipeline:1:1: error: nothing can be nested in a function"),
        ("gemmini-fp32-pipelin", 'pass-pipeline:1:1: error: there is no pass "gemmini-fp32-pipelin"'),
        ("gemmini-fp32-pipeline{unti=loop}", "pass-pipeline:1:1: error: the pipeline"),
        ("gemmini-fp32-pipeline{until=lop}", 'pass-pipeline:1:1: error: there is no level "lop"'),
    ],
)
def test_a_fault_in_a_pipeline_is_located(penstock_opt: Command, pipeline: str, message: str) -> None:
    finished = penstock_opt("-p", pipeline, stdin=TWO)
    assert finished.status == 1
    assert finished.err.startswith(message)


def test_the_pipeline_of_a_machine_is_the_compilers_own(penstock_opt: Command) -> None:
    named = penstock_opt("--gemmini-fp32-pipeline", stdin=LAYER)
    edited = penstock_opt("--machine", "gemmini-fp32", "-p", "default", stdin=LAYER)
    assert named.status == edited.status == 0
    assert named.out == edited.out
    assert "accel.exec" in named.out


def test_passes_are_flags_in_the_order_of_the_command_line(penstock_opt: Command) -> None:
    finished = penstock_opt("--cse", "-dce", "--tile=sizes=4,4", "--dump-pass-pipeline", stdin=TWO)
    assert "Pass Manager with 3 passes:\nbuiltin.module(cse,dce,tile{sizes=4,4})\n" in finished.err
    refused = penstock_opt("--cse", "-p", "dce", stdin=TWO)
    assert (refused.status, refused.out) == (2, "")


@pytest.mark.parametrize(
    ("flag", "near"),
    [("--csee", "--cse"), ("--print-ir-after-al", "--print-ir-after-all"), ("--mlir-timin", "--timing")],
)
def test_a_misspelt_flag_is_answered_with_the_nearest(penstock_opt: Command, flag: str, near: str) -> None:
    finished = penstock_opt(flag, stdin=TWO)
    assert finished.status == 2
    assert f'there is no flag "{"--" + flag.lstrip("-")}"' in finished.err
    assert f'did you mean "{near}"?' in finished.err


# printing


def test_regions_elements_and_users_are_printed_as_asked(penstock_opt: Command) -> None:
    assert penstock_opt("--mlir-print-skip-regions", stdin=TWO).out == "builtin.module {...}\n"
    assert "dense_resource<__elided__> : tensor<4xi32>" in penstock_opt("--elide-larger=3", stdin=TWO).out
    assert "dense<[1, 2, 3, 4]>" in penstock_opt("--mlir-elide-elementsattrs-if-larger=4", stdin=TWO).out
    users = penstock_opt("--mlir-print-value-users", stdin=TWO)
    assert "%a = arith.addi %x, %x : i32 // user: %c\n" in users.out
    assert "    // %x is used by %a, %b\n" in users.out.replace("%b, %a", "%a, %b")
    assert penstock_opt(stdin=users.out).out == penstock_opt(stdin=TWO).out, "these are comments"


def test_names_are_unique_over_functions_if_asked(penstock_opt: Command) -> None:
    assert penstock_opt("--print-unique-ssa-ids", stdin=TWO).out.count("%x:") == 1


def test_colours_are_for_those_who_want_them(penstock_opt: Command) -> None:
    assert "\033[1;31merror:\033[0m" in penstock_opt("-p", "csee", "--color", stdin=TWO).err
    assert "\033" not in penstock_opt("-p", "csee", stdin=TWO).err
    assert "\033" in penstock_opt("--syntax-highlight", stdin=TWO).out


def test_another_target_may_be_written(penstock_opt: Command) -> None:
    assert "@f" in penstock_opt("-t", "mlir", stdin=TWO).out
    refused = penstock_opt("-t", "llvm-i", stdin=TWO)
    assert (refused.status, refused.out) == (2, "")
    assert 'did you mean "llvm-ir"?' in refused.err
    assert penstock_opt("-f", "mlr", stdin=TWO).status == 2
    unsuited = penstock_opt("-t", "riscv-asm", stdin=TWO)
    assert (unsuited.status, unsuited.out) == (1, "")
    assert 'error: the target "riscv-asm" does not know how to write this program' in unsuited.err


# verifying


INVALID = (
    'func.func @f(%x: i32) -> i32 {\n  %y = "arith.addi"(%x) : (i32) -> i32\n  func.return %y : i32\n}\n'
    "func.func @g(%x: i32) -> i64 {\n  func.return %x : i32\n}\n"
)


def test_every_function_that_is_not_valid_is_reported(penstock_opt: Command) -> None:
    finished = penstock_opt(stdin=INVALID)
    assert finished.status == 1
    assert [line.split(" error:")[0] for line in finished.err.splitlines() if "error:" in line] == [
        "<stdin>:2:3:",
        "<stdin>:6:3:",
    ]


def test_verify_each_is_about_what_passes_leave(penstock_opt: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import ReturnOp
    from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

    def breaks(self: object, ctx: object, op: ModuleOp) -> None:
        for found in [each for each in op.walk() if isinstance(each, ReturnOp)]:
            found.detach()

    monkeypatch.setattr(CommonSubexpressionElimination, "apply", breaks)
    assert penstock_opt("--cse", "--verify-each", stdin=TWO).status == 70
    assert penstock_opt("--cse", "--verify-each=0", stdin=TWO).status == 0
    assert penstock_opt("--verify-each=0", stdin=INVALID).status == 1, "the input is verified all the same"
    assert penstock_opt("--disable-verify", "--print-op-generic", stdin=INVALID).status == 0
    assert penstock_opt("--verify-each=maybe", stdin=TWO).status == 2


def test_faults_of_the_text_may_be_no_failure(penstock_opt: Command) -> None:
    text = "func.func @g() { foo }\n"
    finished = penstock_opt("--parsing-diagnostics", stdin=text)
    assert finished.status == 0
    assert "error:" in finished.err
    assert penstock_opt("--no-implicit-module", stdin=TWO).status == 1
    assert penstock_opt("--verify-roundtrip", stdin=TWO).status == 0


# instruments


def test_times_are_a_tree_of_everything_that_ran(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "func.func(cse),dce", "--timing", "--output-format=json", stdin=TWO)
    tree = json.loads(finished.err)["timing"]
    assert [part["name"] for part in tree["parts"]] == [
        "parse",
        "verify",
        "'func.func' pipeline",
        "dce",
        "print",
        "rest",
    ]
    nested = tree["parts"][2]
    assert [part["name"] for part in nested["parts"]] == ["cse", "verify"]
    assert sum(part["wall"] for part in tree["parts"]) == pytest.approx(tree["wall"], abs=1e-4)
    listed = penstock_opt("--cse", "--mlir-timing", "--mlir-timing-display=list", stdin=TWO).err
    assert "User Time" in listed
    assert "cse" in listed


def test_statistics_say_what_came_and_went(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "func.func(cse)", "--statistics", "--output-format=json", stdin=TWO)
    rows = json.loads(finished.err)["statistics"]
    assert rows[1] == {"depth": 1, "pass": "cse", "added": {}, "removed": {"arith.addi": 1, "arith.constant": 1}}
    listed = penstock_opt("--cse", "--mlir-pass-statistics", "--mlir-pass-statistics-display=list", stdin=TWO).err
    assert "2 operations removed: 1 arith.addi, 1 arith.constant" in listed


def test_remarks_are_located_filtered_and_of_a_pass(penstock_opt: Command, tmp_path: Path) -> None:
    finished = penstock_opt("--gemmini-fp32-pipeline", "--remarks=passed assign", stdin=LAYER)
    assert "<stdin>:2:3" in finished.err or "<stdin>:3:3" in finished.err
    assert finished.err.count("remark: [passed assign-devices] runs on @gemmini_fp32") == 1
    assert "mem-plan" not in finished.err
    flags = ("--remarks", "--output-format=json", "--remarks-output=remarks.json")
    assert penstock_opt("--gemmini-fp32-pipeline", *flags, stdin=LAYER).out == finished.out, "they change nothing"
    found = json.loads((tmp_path / "remarks.json").read_text())["remarks"]
    assert {each["pass"] for each in found} >= {"graph-fuse", "assign-devices", "tile", "mem-plan", "accel-pipeline"}
    assert all(each["location"] and each["kind"] in ("passed", "missed", "analysis") for each in found)
    assert penstock_opt("--remarks=(", stdin=TWO).status == 2


# reproducers


def test_every_dump_of_a_tree_is_resumed_to_the_same_end(penstock_opt: Command, tmp_path: Path) -> None:
    pipeline = ("-p", "graph-fuse,graph-to-tensor,func.func(cse),tensor-to-loop,mem-plan")
    whole = penstock_opt(*pipeline, "--mlir-print-ir-tree-dir=dumps", stdin=LAYER)
    names = sorted(str(path.relative_to(tmp_path / "dumps")) for path in (tmp_path / "dumps").rglob("*.mlir"))
    module = "builtin_module_no-symbol-name"
    assert names == [
        f"{module}/0_graph-fuse.mlir",
        f"{module}/1_graph-to-tensor.mlir",
        f"{module}/3_tensor-to-loop.mlir",
        f"{module}/4_mem-plan.mlir",
        f"{module}/func_func_fused_0/2_0_cse.mlir",
        f"{module}/func_func_main/2_0_cse.mlir",
    ]
    for name in names[:4]:
        assert penstock_opt("--resume", f"dumps/{name}").out == whole.out, name


def test_a_dump_has_the_weights_that_passes_made(penstock_opt: Command, tmp_path: Path) -> None:
    import numpy as np

    from penstock.dialects.weights import WeightStore

    store = WeightStore()
    store.add("w", np.arange(24 * 16, dtype=np.float32).reshape(16, 24))
    store.save(tmp_path / "w.safetensors")
    text = (
        'builtin.module attributes {graph.weights = "w.safetensors"} {\n'
        "func.func @main(%x: tensor<8x24xf32>) -> tensor<8x16xf32> {\n"
        '  %w = graph.constant #graph.weight<"w"> : tensor<16x24xf32>\n'
        "  %t = graph.transpose %w perm [1, 0] : tensor<16x24xf32> -> tensor<24x16xf32>\n"
        "  %y = graph.matmul %x, %t : (tensor<8x24xf32>, tensor<24x16xf32>) -> tensor<8x16xf32>\n"
        "  func.return %y : tensor<8x16xf32>\n}\n}\n"
    )
    (tmp_path / "in.mlir").write_text(text)
    pipeline = ("-p", "fold-constants,graph-fuse,graph-to-tensor")
    assert penstock_opt("in.mlir", *pipeline, "-o", "out.mlir", "--print-ir-tree-dir=d").status == 0
    folder = tmp_path / "d" / "builtin_module_no-symbol-name"
    assert [path.name for path in folder.glob("*.safetensors")] == ["0_fold-constants.safetensors"]
    resumed = penstock_opt("--resume", folder / "0_fold-constants.mlir", "-o", "again.mlir")
    assert (resumed.status, resumed.err) == (0, "")

    def body(name: str) -> list[str]:
        return (tmp_path / name).read_text().splitlines()[1:]

    assert body("again.mlir") == body("out.mlir")


def test_a_pass_that_refuses_is_repeated_alone(penstock_opt: Command, tmp_path: Path) -> None:
    text = (
        "machine.target @small frequency 100 {\n  machine.scope @sram size 64 granule 16 dtypes [f32]\n}\n"
        "func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {\n"
        '  %a = mem.buffer : memref<64xf32, "sram">\n'
        '  mem.copy %x to %a : memref<64xf32> to memref<64xf32, "sram">\n'
        '  mem.copy %a to %y : memref<64xf32, "sram"> to memref<64xf32>\n  func.return\n}\n'
    )
    first = penstock_opt("--cse", "--mem-plan", "--crash-reproducer=r.mlir", "--local-reproducer", stdin=text)
    assert first.status == 1
    again = penstock_opt("--run-reproducer", "r.mlir", "--dump-pass-pipeline")
    assert "builtin.module(mem-plan)" in again.err
    message = "@main does not fit scope"
    assert message in first.err
    assert message in again.err
    generated = penstock_opt("--cse", "--mlir-generate-reproducer=g.mlir", stdin=TWO)
    assert penstock_opt("--run-reproducer", "g.mlir").out == generated.out
    assert penstock_opt("--run-reproducer", stdin=TWO).status == 1


@pytest.mark.skipif(shutil.which("mlir-opt-19") is None, reason="there is no mlir-opt")
def test_reproducers_are_those_of_mlir(penstock_opt: Command, tmp_path: Path) -> None:
    def mlir_opt(*flags: str) -> str:
        return subprocess.run(["mlir-opt-19", *flags], capture_output=True, text=True, check=True).stdout

    (tmp_path / "two.mlir").write_text(TWO)
    ours = penstock_opt("two.mlir", "-p", "func.func(cse)", "--generate-reproducer=ours.mlir")
    assert penstock_opt(stdin=mlir_opt("--run-reproducer", "ours.mlir")).out.count("arith.addi") == 1
    mlir_opt("two.mlir", "--cse", "--mlir-generate-reproducer=theirs.mlir")
    assert penstock_opt("--run-reproducer", "theirs.mlir").out.count("arith.addi") == ours.out.count("arith.addi") == 1


# asking


def test_dialects_and_passes_are_listed(penstock_opt: Command) -> None:
    dialects = penstock_opt("--show-dialects").out
    assert dialects.startswith("Available Dialects: ")
    assert {"accel", "arith", "graph", "machine"} <= set(dialects.strip().split(": ")[1].split(","))
    assert (
        "Remove operations that compute what one that dominates them has computed."
        in penstock_opt("--help-pass", "cse").out
    )
    assert "until = accel" in penstock_opt("--help-pass", "gemmini-fp32-pipeline").out


def test_the_examples_of_upstream_passes_are_true(penstock_opt: Command) -> None:
    from penstock.tools.upstream_passes import DOCUMENTATION

    checked = 0
    for name, text in DOCUMENTATION.items():
        if "Before:" not in text:
            continue
        before, after = (part.split("```")[0] for part in text.split("```mlir\n")[1:])
        assert penstock_opt("-p", name, stdin=before).out == penstock_opt(stdin=after).out, name
        checked += 1
    assert checked == 2


# the lexer


def tokens(kind: type[MLIRLexer], text: str) -> list[object]:
    lexer, found = kind(Input(text, "x")), list[object]()
    try:
        while True:
            token = lexer.lex()
            found.append((token.kind, token.span.start, token.span.end, token.text))
            if token.kind is MLIRTokenKind.EOF:
                return found
    except ParseError as error:
        return [*found, (error.msg, error.span.start, error.span.end)]


PIECES = (
    *'% a 0 0x 1.5 1. e E+3 - > -> { {-# #-} # ! ^ @ " x" : , ... . // _ $ \\ / ? | * = ( ) [ ] <'.split(),
    *'ab1 1e5 0xg %1a #map0 !t.x @"s" \u00e9 \u0663 \u00b2'.split(),
    *(" ", "\n", "\t", "\r", "\x0b", "\x1c", "// c\n"),
)


def test_the_lexer_reads_the_tokens_of_xdsl() -> None:
    draw = random.Random(19)
    for _ in range(2000):
        text = "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 9)))
        assert tokens(SourceLexer, text) == tokens(MLIRLexer, text), repr(text)


def test_a_value_that_needs_quotes_is_said_to(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "mem-liveness{graph=g.dot remarks=false}", stdin="builtin.module {}")
    assert finished.status == 1
    assert "pass-pipeline:1:21: error: Unknown token" in finished.err
    assert 'note: a value with other characters stands in quotes: option="out/graph.dot"' in finished.err
