# SPDX-License-Identifier: Apache-2.0
"""penstock-opt, as an mlir-opt user expects it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.dialects.weights import WeightStore

if TYPE_CHECKING:
    from tests.conftest import Command, Finished

REDUNDANT = """\
func.func @f(%x: i32) -> i32 {
  %y = arith.addi %x, %x : i32
  %z = arith.addi %x, %x : i32
  %s = arith.muli %y, %z : i32
  func.return %s : i32
}
"""
MERGED = """\
builtin.module {
  func.func @f(%x: i32) -> i32 {
    %y = arith.addi %x, %x : i32
    %s = arith.muli %y, %y : i32
    func.return %s : i32
  }
}
"""


def test_it_reads_stdin_and_writes_only_the_ir_to_stdout(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "cse", stdin=REDUNDANT)
    assert (finished.status, finished.out, finished.err) == (0, MERGED, "")


def test_a_dash_is_stdin(penstock_opt: Command) -> None:
    assert penstock_opt("-", "-p", "cse", stdin=REDUNDANT).out == MERGED


def test_it_writes_to_a_file_and_nothing_to_stdout(penstock_opt: Command, tmp_path: Path) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(REDUNDANT)
    finished = penstock_opt(source, "-p", "cse", "-o", "out.mlir")
    assert (finished.status, finished.out) == (0, "")
    assert (tmp_path / "out.mlir").read_text() == MERGED


def test_a_failing_run_leaves_the_output_file_as_it_was(penstock_opt: Command, tmp_path: Path) -> None:
    output = tmp_path / "out.mlir"
    output.write_text("as before")
    assert penstock_opt("-o", output, stdin="func.func @f(").status == 1
    assert output.read_text() == "as before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.mlir"], "no temporary file is left"


def test_the_pipeline_of_mlir_opt_is_accepted(penstock_opt: Command) -> None:
    assert penstock_opt("--pass-pipeline=builtin.module(cse)", stdin=REDUNDANT).out == MERGED


def test_pieces_of_a_split_file_are_worked_on_apart(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "cse", "--split-input-file", stdin=f"{REDUNDANT}// -----\n{REDUNDANT}")
    assert finished.out == f"{MERGED}// -----\n{MERGED}"
    assert finished.status == 0


def test_a_fault_in_one_piece_does_not_hide_the_others(penstock_opt: Command) -> None:
    text = f"func.func @g() {{ foo }}\n// -----\n{REDUNDANT}// -----\nfunc.func @h(%x: i33x) {{}}\n"
    finished = penstock_opt("-p", "cse", "--split-input-file", stdin=text)
    assert finished.status == 1
    assert MERGED in finished.out
    assert '<stdin>:1:18: error: the operation "foo" is not registered' in finished.err
    assert "<stdin>:10:18: error: type expected" in finished.err, "lines are counted in the whole file"


def test_ir_is_printed_only_after_passes_that_change_it(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "dce,cse,dce", "--print-ir-after-change", stdin=REDUNDANT)
    assert finished.out == MERGED
    assert finished.err.count("IR Dump After") == 1
    assert "// -----// IR Dump After cse //----- //\n" + MERGED in finished.err


def test_ir_is_printed_before_and_after_the_named_pass(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "dce,cse", "--print-ir-before=cse", "--print-ir-after=dce", stdin=REDUNDANT)
    assert "IR Dump Before cse" in finished.err
    assert "IR Dump After dce" in finished.err
    assert finished.err.count("IR Dump") == 2


def test_a_bare_print_ir_after_does_not_swallow_the_file_name(penstock_opt: Command, tmp_path: Path) -> None:
    (tmp_path / "in.mlir").write_text(REDUNDANT)
    finished = penstock_opt("-p", "dce,cse", "--print-ir-after", "in.mlir")
    assert finished.status == 0
    assert finished.err.count("IR Dump After") == 2


def test_timing_goes_to_stderr_alone(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "cse,dce", "--timing", stdin=REDUNDANT)
    assert finished.out == MERGED
    assert "cse" in finished.err
    assert "total" in finished.err


def test_generic_form_is_printed_and_read_back(penstock_opt: Command) -> None:
    generic = penstock_opt("--print-op-generic", stdin=MERGED).out
    assert '"arith.addi"(%x, %x)' in generic
    assert penstock_opt(stdin=generic).out == MERGED


def test_debug_info_holds_the_line_and_column_of_every_operation(penstock_opt: Command) -> None:
    printed = penstock_opt("--print-debuginfo", stdin=MERGED).out
    assert 'arith.addi %x, %x : i32 loc("<stdin>":3:5)' in printed
    assert penstock_opt(stdin=printed).out == MERGED, "locations are read back"


def test_an_unknown_dialect_passes_only_if_allowed(penstock_opt: Command) -> None:
    text = '"my.op"() : () -> ()\n'
    refused = penstock_opt(stdin=text)
    assert refused.status == 1
    assert '<stdin>:1:1: error: the operation "my.op" is not registered' in refused.err
    allowed = penstock_opt("--allow-unregistered-dialect", stdin=text)
    assert '"my.op"() : () -> ()' in allowed.out


def test_passes_of_penstock_and_of_xdsl_are_listed_with_their_purpose(penstock_opt: Command) -> None:
    listed = penstock_opt("--list-passes").out
    assert "graph-fuse " in listed
    assert "canonicalize" in listed
    assert "Applies all canonicalization patterns." in listed


def test_help_of_a_pass_names_its_options_with_defaults(penstock_opt: Command) -> None:
    helped = penstock_opt("--help-pass", "convert-func-to-x86-func").out
    assert helped.startswith("convert-func-to-x86-func\n")
    options = penstock_opt("--help-pass", "scf-parallel-loop-tiling").out
    assert "parallel-loop-tile-sizes (required): integers, separated by commas" in options


def test_an_undefined_value_is_reported_where_it_is_used(penstock_opt: Command) -> None:
    text = "func.func @f(%total: i32) -> i32 {\n  %y = arith.addi %total, %totl : i32\n  func.return %y : i32\n}\n"
    finished = penstock_opt(stdin=text)
    assert finished.status == 1
    assert finished.err == (
        "<stdin>:2:27: error: use of the undefined value %totl\n"
        "  %y = arith.addi %total, %totl : i32\n"
        "                          ^\n"
        'note: did you mean "%total"?\n'
    )


def test_a_verifier_fault_is_one_located_line_and_no_dump(penstock_opt: Command) -> None:
    text = 'func.func @f(%x: i32) -> i32 {\n  %y = "arith.addi"(%x) : (i32) -> i32\n  func.return %y : i32\n}\n'
    finished = penstock_opt(stdin=text)
    assert finished.status == 1
    assert finished.err == (
        "<stdin>:2:3: error: 'arith.addi' does not verify: Expected 2 operands, but got 1\n"
        '  %y = "arith.addi"(%x) : (i32) -> i32\n'
        "  ^\n"
    )
    assert penstock_opt("--no-verify", "--print-op-generic", stdin=text).status == 0


def test_a_use_before_its_definition_is_found_by_our_verifier(penstock_opt: Command) -> None:
    text = (
        "func.func @f(%x: i32) -> i32 {\n  %y = arith.addi %x, %z : i32\n"
        "  %z = arith.addi %x, %x : i32\n  func.return %y : i32\n}\n"
    )
    finished = penstock_opt(stdin=text)
    assert finished.status == 1
    assert finished.err.startswith("<stdin>:2:3: error: ")
    assert "does not dominate" in finished.err


def test_an_operation_with_a_name_as_location_is_still_found_in_its_file(penstock_opt: Command) -> None:
    text = 'func.func @f(%x: i32) {\n  %y = "arith.addi"(%x) : (i32) -> i32 loc("sum")\n  func.return\n}\n'
    assert penstock_opt(stdin=text).err.startswith("<stdin>:2:3: error: ")


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("csee", 'pass-pipeline:1:1: error: there is no pass "csee"'),
        ("cse,canonicalise", 'pass-pipeline:1:5: error: there is no pass "canonicalise"'),
        ("cse,,dce", "pass-pipeline:1:5: error: Expected pass name here"),
        ("cse{deep=1}", 'pass-pipeline:1:1: error: the pass "cse" has no option "deep"'),
    ],
)
def test_a_faulty_pipeline_is_located_in_its_text(penstock_opt: Command, pipeline: str, message: str) -> None:
    finished = penstock_opt("-p", pipeline, stdin=REDUNDANT)
    assert finished.status == 1
    assert finished.err.splitlines()[0] == message


def test_a_misspelt_pass_gets_the_nearest_name(penstock_opt: Command) -> None:
    assert 'note: did you mean "canonicalize"?' in penstock_opt("-p", "canonicalise", stdin=REDUNDANT).err


def test_a_misspelt_option_gets_the_nearest_name(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "scf-parallel-loop-tiling{parallel-loop-tile-size=4}", stdin=REDUNDANT)
    assert 'has no option "parallel-loop-tile-size"' in finished.err
    assert 'did you mean "parallel-loop-tile-sizes"?' in finished.err


def test_an_option_of_the_wrong_type_names_the_types(penstock_opt: Command) -> None:
    finished = penstock_opt("-p", "scf-parallel-loop-tiling{parallel-loop-tile-sizes=big}", stdin=REDUNDANT)
    assert finished.status == 1
    assert 'the option "parallel-loop-tile-sizes" of the pass' in finished.err
    assert 'takes integers, separated by commas, not "big"' in finished.err


def test_an_unknown_flag_is_a_usage_fault(penstock_opt: Command) -> None:
    assert penstock_opt("--no-such-flag", stdin=REDUNDANT).status == 2


# expectations


def expect(penstock_opt: Command, text: str, *flags: str) -> Finished:
    return penstock_opt("--verify-diagnostics", "--split-input-file", *flags, stdin=text)


FAULTY = 'func.func @f(%x: i32) {{\n  %y = "arith.addi"(%x) : (i32) -> i32{0}\n  func.return\n}}\n'


def test_an_expected_error_on_its_line_is_met(penstock_opt: Command) -> None:
    text = FAULTY.format(" // expected-error {{Expected 2 operands}}")
    finished = expect(penstock_opt, text)
    assert (finished.status, finished.err) == (0, "")


@pytest.mark.parametrize("where", ["@+2", "@-1", "@below", "@above"])
def test_an_expected_error_may_stand_on_another_line(penstock_opt: Command, where: str) -> None:
    comment = f"  // expected-error {where} {{{{Expected 2 operands}}}}\n"
    fault = '  %y = "arith.addi"(%x) : (i32) -> i32\n'
    body = {
        "@+2": f"{comment}\n{fault}",
        "@below": f"{comment}{fault}",
        "@-1": f"{fault}{comment}",
        "@above": f"{fault}{comment}",
    }[where]
    finished = expect(penstock_opt, f"func.func @f(%x: i32) {{\n{body}  func.return\n}}\n")
    assert (finished.status, finished.err) == (0, "")


def test_an_error_that_nobody_expected_is_reported(penstock_opt: Command) -> None:
    finished = expect(penstock_opt, FAULTY.format(""))
    assert finished.status == 1
    assert "<stdin>:2:3: error: unexpected error: 'arith.addi' does not verify" in finished.err


def test_an_expected_error_that_does_not_come_is_reported(penstock_opt: Command) -> None:
    finished = expect(penstock_opt, "// expected-error {{never seen}}\n" + REDUNDANT)
    assert finished.status == 1
    assert '<stdin>:1:4: error: expected error "never seen" was not produced' in finished.err


def test_another_message_on_the_right_line_does_not_count(penstock_opt: Command) -> None:
    finished = expect(penstock_opt, FAULTY.format(" // expected-error {{Expected 3 operands}}"))
    assert finished.status == 1
    assert "unexpected error" in finished.err
    assert "was not produced" in finished.err


def test_expectations_of_one_piece_do_not_serve_another(penstock_opt: Command) -> None:
    text = FAULTY.format("") + "// -----\n" + REDUNDANT + "// expected-error @-5 {{Expected 2 operands}}\n"
    assert expect(penstock_opt, text).status == 1


def test_an_expectation_may_be_a_regular_expression(penstock_opt: Command) -> None:
    met = FAULTY.format(" // expected-error-re {{Expected {{[0-9]+}} operands}}")
    assert expect(penstock_opt, met).status == 0
    missed = FAULTY.format(" // expected-error-re {{Expected {{[a-z]+}} operands}}")
    assert expect(penstock_opt, missed).status == 1


def test_a_malformed_expectation_is_refused(penstock_opt: Command) -> None:
    finished = expect(penstock_opt, "// expected-error missing braces\n" + REDUNDANT)
    assert finished.status == 1
    assert "<stdin>:1:4: error: this expectation is not understood" in finished.err


# faults of ours


def test_a_crashing_pass_leaves_a_reproducer_that_repeats_it(
    penstock_opt: Command, tmp_path: Path, temporary_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

    def crash(self: object, ctx: object, op: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(CommonSubexpressionElimination, "apply", crash)
    finished = penstock_opt("-p", "dce,cse,dce", stdin=REDUNDANT)
    assert finished.status == 70
    assert "KeyError: 'lost'" in finished.err
    (written,) = temporary_files.glob("*/*")
    command = f"penstock-opt --run-reproducer {written}"
    assert f"note: repeat it with: {command}\n" in finished.err
    text = written.read_text()
    assert text.startswith(f"// {command}\n")
    assert REDUNDANT in text
    assert 'pipeline: "builtin.module(dce,cse)"' in text
    assert penstock_opt(*command.split()[1:]).status == 70
    option = "--mlir-pass-pipeline-crash-reproducer=named.mlir"
    assert "--run-reproducer named.mlir\n" in penstock_opt("-p", "dce,cse,dce", option, stdin=REDUNDANT).err
    assert [path.name for path in tmp_path.iterdir()] == ["named.mlir"], "nothing else where the user works"


def test_a_reproducer_names_the_weights_wherever_it_is(
    penstock_opt: Command, tmp_path: Path, temporary_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

    def crash(self: object, ctx: object, op: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(CommonSubexpressionElimination, "apply", crash)
    (tmp_path / "sub").mkdir()
    WeightStore().save(tmp_path / "sub" / "w.safetensors")
    (tmp_path / "sub" / "m.mlir").write_text('builtin.module attributes {graph.weights = "w.safetensors"} {}')
    for _ in range(2):
        assert penstock_opt("sub/m.mlir", "-p", "cse").status == 70
    written = list(temporary_files.glob("*/*"))
    assert len(written) == 2
    for path in written:
        assert f'{{graph.weights = "{tmp_path / "sub" / "w.safetensors"}"}}' in path.read_text()
        assert penstock_opt(path, "-p", "dce").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]


def test_names_of_passes_in_options_are_checked(penstock_opt: Command) -> None:
    for option in ("--print-ir-before=", "--print-ir-after=", "--mlir-print-ir-after=cse,", "--help-pass="):
        finished = penstock_opt("-p", "cse", f"{option}csee", stdin=REDUNDANT)
        assert (finished.status, finished.out) == (1, "")
        assert finished.err == 'error: there is no pass "csee"\nnote: did you mean "cse"?\n'
    finished = penstock_opt("-p", "cse", "--print-ir-after=dce", stdin=REDUNDANT)
    assert finished.status == 0
    assert finished.err == 'warning: the pass "dce" is not in the pipeline, so its IR is not printed\n'


def test_a_pass_that_breaks_the_ir_is_named(penstock_opt: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import ReturnOp
    from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

    def breaks(self: object, ctx: object, op: ModuleOp) -> None:
        for found in list(op.walk()):
            if isinstance(found, ReturnOp):
                found.detach()

    monkeypatch.setattr(CommonSubexpressionElimination, "apply", breaks)
    finished = penstock_opt("-p", "cse", stdin=REDUNDANT)
    assert finished.status == 70
    assert 'the pass "cse" left invalid IR' in finished.err


def test_the_installed_command_runs_and_survives_a_reader_that_leaves(script: Callable[[str], str]) -> None:
    many = REDUNDANT.replace("@f", "@f{}")
    text = "".join(many.replace("{}", str(index)) for index in range(300))
    finished = subprocess.run(
        f"{script('penstock-opt')} - | head -n 1",
        shell=True,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert finished.stdout == "builtin.module {\n"
    assert finished.stderr == ""


def test_a_string_that_is_not_closed_is_reported_at_once(penstock_opt: Command) -> None:
    text = 'func.func @f() {\n  "arith.constant ' + "x" * 200 + "\n  func.return\n}\n"
    finished = penstock_opt(stdin=text)
    assert finished.status == 1
    assert finished.err.startswith("<stdin>:2:3: error: End of file reached before closing string literal.")


def test_an_attribute_of_another_kind_is_a_fault_of_the_text(penstock_opt: Command) -> None:
    text = (
        "func.func @f(%x: memref<4xf32>) {\n"
        '  linalg.generic {indexing_maps = 3, iterator_types = ["parallel"]} outs(%x : memref<4xf32>) {\n'
        "  ^bb0(%a: f32):\n    linalg.yield %a : f32\n  }\n  func.return\n}\n"
    )
    finished = penstock_opt(stdin=text)
    assert finished.status == 1
    assert finished.err.startswith("<stdin>:2:18: error: expected indexing_maps, a list of affine maps")


def test_a_small_text_at_graph_level_loads_neither_numpy_nor_onnx(tmp_path: Path) -> None:
    """In a process of its own: what is imported is most of the time that a small text takes."""
    (tmp_path / "x.mlir").write_text(
        "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
        "  %y = graph.relu %x : tensor<2xf32>\n  func.return %y : tensor<2xf32>\n}\n"
    )
    program = """
import sys
from penstock.tools.opt import run
status = run(["x.mlir", "-o", "y.mlir"])
print(status, *sorted({"numpy", "ml_dtypes", "safetensors", "onnx"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == "0\n"
    assert "graph.relu" in (tmp_path / "y.mlir").read_text()
