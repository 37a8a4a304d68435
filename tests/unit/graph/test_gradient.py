# SPDX-License-Identifier: Apache-2.0
"""`graph-gradient` as a pass: what it makes and leaves out, its options, and what it refuses."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.irdl import irdl_op_definition

from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.graph.gradients.code import RULES, AdjointCode, gradient
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]
Make = Callable[..., Any]

SQUARES = """
func.func @main(%x: tensor<3xf32> {graph.name = "x"}, %y: tensor<3xf32> {graph.name = "y"}, %n: tensor<3xi64>)
    -> (tensor<f32> {graph.name = "energy"}, tensor<3xf32>) {
  %a = graph.mul %x, %x : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %b = graph.mul %a, %y : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %s = graph.reduce_sum %b axes [0] keepdims false : tensor<3xf32> -> tensor<f32>
  %e = graph.exp %y : tensor<3xf32>
  func.return %s, %e : tensor<f32>, tensor<3xf32>
}
"""
TWO_LAYERS = """
func.func @main(%x: tensor<2x3xf32> {graph.name = "x"}) -> tensor<2x3xf32> {
  %w = graph.constant #graph.weight<"w"> : tensor<3x3xf32>
  %a = graph.matmul %x, %w : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32> loc("first")
  %b = graph.tanh %a : tensor<2x3xf32> loc("bend")
  %again = graph.constant #graph.weight<"w"> : tensor<3x3xf32>
  %c = graph.matmul %b, %again : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32> loc("second")
  func.return %c : tensor<2x3xf32>
}
"""


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}


def ops(func: FuncOp) -> Counter[str]:
    """How many ops of each name there are."""
    return Counter(op.name.removeprefix("graph.") for op in func.body.block.ops)


def names(func: FuncOp, *, results: bool = False) -> list[str | None]:
    attributes = func.res_attrs if results else func.arg_attrs
    found = [entry.data.get("graph.name") for entry in attributes or ()]
    return [each.data if isinstance(each, StringAttr) else None for each in found]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


# what is made


def test_the_function_takes_arguments_and_seeds_and_returns_a_gradient_for_each_argument_of_floats(make: Make) -> None:
    func = functions(make(SQUARES).after("graph-gradient").module)["main_gradient"]
    assert names(func) == ["x", "y", None, "energy/seed", None]
    assert names(func, results=True) == ["x/gradient", "y/gradient"]
    x, y, seed = numbers(3), numbers(3) + 1, np.array([1, 0, 2], np.float32)
    found = run_graph(func, [x, y, np.zeros(3, np.int64), np.asarray(2, np.float32), seed], make_context().weights)
    np.testing.assert_allclose(found[0], 2 * 2 * x * y, rtol=1e-6)
    np.testing.assert_allclose(found[1], 2 * x * x + seed * np.exp(y), rtol=1e-6)


def test_only_what_is_asked_for_is_computed(make: Make) -> None:
    func = functions(make(SQUARES).after('graph-gradient{wrt="y" results=0}').module)["main_gradient"]
    # y plays a part in the second factor of b only; exp is of another result
    assert ops(func) == Counter({"mul": 2, "expand": 1, "func.return": 1})
    func = functions(make(SQUARES).after('graph-gradient{wrt="x" results=1}').module)["main_gradient"]
    assert ops(func) == Counter({"constant": 1, "expand": 1, "func.return": 1}), "x does not influence the result"


def test_results_of_the_function_come_first_if_they_are_wanted_too(make: Make) -> None:
    program = make(SQUARES).after("graph-gradient{wrt=0 results=0 seed=one primal=true replace=true}")
    assert list(functions(program.module)) == ["main"]
    assert names(program.main, results=True) == ["energy", None, "x/gradient"]
    x, y = numbers(3), numbers(3) + 1
    energy, exponent, slope = program.run(x, y, np.zeros(3, np.int64))
    np.testing.assert_allclose(energy, np.sum(x * x * y), rtol=1e-6)
    np.testing.assert_allclose(exponent, np.exp(y), rtol=1e-6)
    np.testing.assert_allclose(slope, 2 * x * y, rtol=1e-6)


def test_a_weight_gets_the_sum_over_all_places_where_it_is_used(make: Make) -> None:
    w, x, seed = numbers(3, 3), numbers(2, 3) + 0.2, numbers(2, 3) - 0.3
    program = make(TWO_LAYERS, w=w).after('graph-gradient{wrt="w" to=slope}')
    (found,) = run_graph(functions(program.module)["slope"], [x, seed], program.ctx.weights)
    b = np.tanh(x @ w)
    np.testing.assert_allclose(found, b.T @ seed + x.T @ ((seed @ w.T) * (1 - b * b)), rtol=1e-5)


def test_adjoint_code_has_the_location_of_the_op_it_comes_back_through(make: Make) -> None:
    func = functions(make(TWO_LAYERS, w=numbers(3, 3)).after("graph-gradient").module)["main_gradient"]
    found = [str(op.location) for op in func.body.block.ops]
    assert sum('"bend/gradient"' in each for each in found) == 4
    assert sum('"bend"' in each for each in found) == 1


def test_twice_the_same_text(make: Make) -> None:
    first, second = (make(TWO_LAYERS, w=numbers(3, 3)).after('graph-gradient{wrt=x,"w"},cse,dce') for _ in range(2))
    assert first.text == second.text


def test_the_derivative_of_the_derivative_of_a_cube(make: Make) -> None:
    program = make("""
    func.func @main(%x: tensor<f64>) -> tensor<f64> {
      %a = graph.mul %x, %x : (tensor<f64>, tensor<f64>) -> tensor<f64>
      %y = graph.mul %a, %x : (tensor<f64>, tensor<f64>) -> tensor<f64>
      func.return %y : tensor<f64>
    }""")
    pipeline = "graph-gradient{seed=one replace=true},cse,dce"
    for expected in (3 * 1.5**2, 6 * 1.5, 6.0, 0.0):
        (found,) = program.after(pipeline).run(np.float64(1.5))
        assert found == expected


def test_the_gradients_of_an_imported_model_are_those_written_by_hand(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository / "examples" / "digits"
    monkeypatch.syspath_prepend(str(folder))  # pyright: ignore[reportUnknownMemberType]
    train: Any = importlib.import_module("train")
    program = load_input(folder / "digits.onnx")
    wanted = ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc.weight", "fc.bias"]
    quoted = ",".join(f'"{name}"' for name in wanted)
    run_passes(program.ctx, program.module, read_pipeline(f"graph-gradient{{wrt={quoted}}}"))
    with np.load(folder / "test_images.npz") as file:
        image, label = file["images"][:1], file["labels"][:1]
    weights = {name: program.ctx.weights[name] for name in wanted}
    scores, kept = train.forward(weights, image)
    seed = np.exp(scores) / np.exp(scores).sum()
    seed[0, label] -= 1
    found = run_graph(functions(program.module)["main_gradient"], [image, seed], program.ctx.weights)
    expected = train.backward(weights, kept, scores, label)
    for name, slope in zip(wanted, found, strict=True):
        np.testing.assert_allclose(slope, expected[name], rtol=1e-3, atol=1e-6, err_msg=name)


MIXED = """
func.func @main(%x: tensor<2x4x9x8xf32>, %w: tensor<8x2x3x3xf32>, %at: tensor<3xi64>, %v: tensor<6x5xf32>)
    -> tensor<2x3x5xf32> {
  %conv = graph.conv %x, %w strides [2, 1] pads [1, 1, 1, 1] dilations [1, 1] group 2
      : (tensor<2x4x9x8xf32>, tensor<8x2x3x3xf32>) -> tensor<2x8x5x8xf32>
  %max = graph.max_pool %conv kernel_shape [3, 2] strides [1, 2] pads [1, 0, 1, 0] dilations [1, 1]
      : tensor<2x8x5x8xf32> -> tensor<2x8x5x4xf32>
  %lrn = graph.lrn %max size 3 alpha 0.5 : tensor<2x8x5x4xf32> -> tensor<2x8x5x4xf32>
  %mean = graph.average_pool %lrn kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_mode true
      : tensor<2x8x5x4xf32> -> tensor<2x8x3x2xf32>
  %pick = graph.gather %mean at %at axis 1 : (tensor<2x8x3x2xf32>, tensor<3xi64>) -> tensor<2x3x3x2xf32>
  %flat = graph.reshape %pick : tensor<2x3x3x2xf32> -> tensor<2x3x6xf32>
  %mat = graph.matmul %flat, %v : (tensor<2x3x6xf32>, tensor<6x5xf32>) -> tensor<2x3x5xf32>
  %gelu = graph.gelu %mat : tensor<2x3x5xf32>
  %y = graph.softmax %gelu axis 2 : tensor<2x3x5xf32> -> tensor<2x3x5xf32>
  func.return %y : tensor<2x3x5xf32>
}
"""


@pytest.mark.parametrize("machine", [None, pytest.param("gemmini-fp32", marks=pytest.mark.slow)])
def test_adjoint_code_of_many_ops_runs_at_the_lowest_level(make: Make, machine: str | None) -> None:
    program = make(MIXED).after("graph-gradient{replace=true},cse,dce")
    inputs = [numbers(2, 4, 9, 8), numbers(8, 2, 3, 3), np.array([1, -2, 1], np.int64), numbers(6, 5), numbers(2, 3, 5)]
    expected = program.run(*inputs)
    compile_module(program.module, program.ctx, machine)
    for found, wanted in zip(run_module(program.module, inputs, program.ctx.weights), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max())


@irdl_op_definition
class CubeOp(graph.UnaryOp):
    """x * x * x, of a package of its own."""

    name = "mine.cube"


def test_an_op_of_a_package_brings_its_own_rule(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { func.return %x : tensor<2xf32> }")
    block = program.main.body.block
    cube = CubeOp(block.args[0])
    block.insert_op_before(cube, block.last_op)
    block.last_op.operands[0] = cube.result
    with pytest.raises(UserError, match=r"mine\.cube has no derivative"):
        program.after("graph-gradient")

    monkeypatch.setitem(RULES, CubeOp, lambda code, op: None)  # restored, whatever the decorator puts there

    @gradient(CubeOp)
    def rule(code: AdjointCode, op: CubeOp) -> None:  # pyright: ignore[reportUnusedFunction]
        x = code.term(op.x)
        code.add(op.x, lambda: code.seed * (3.0 * x * x))

    func = functions(program.after("graph-gradient").module)["main_gradient"]
    x, seed = numbers(2), numbers(2)
    (found,) = run_graph(func, [x, seed], make_context().weights)
    np.testing.assert_allclose(found, seed * 3 * x * x, rtol=1e-6)


# what is refused


def refused(text: str, pipeline: str) -> UserError:
    ctx = make_context()
    parsed = parse_text(ctx, SourceText("bad.mlir", text))
    with pytest.raises(UserError) as caught:
        run_passes(ctx, parsed.module, read_pipeline(pipeline), parsed=parsed)
    return caught.value


@pytest.mark.parametrize(
    ("pipeline", "message", "note"),
    [
        ("graph-gradient{of=mian}", "no function @mian", 'did you mean "main"?'),
        ('graph-gradient{wrt="xx"}', '@main has no argument or weight "xx"', 'did you mean "x"?'),
        ('graph-gradient{wrt="speed"}', 'no argument or weight "speed"', "arguments 0 to 2, and by name: x, y"),
        ("graph-gradient{wrt=3}", '@main has no argument or weight "3"', "arguments 0 to 2"),
        ("graph-gradient{wrt=2}", '"2" is a tensor<3xi64>: only floats have derivatives', ""),
        ("graph-gradient{results=2}", "@main has no result 2 of floats", "results of floats: 0, 1"),
        ("graph-gradient{seed=one}", "a result of 3 elements has no derivative without a seed", "a loss"),
        ("graph-gradient{to=main}", "there is a @main already", "give it another name"),
        ("graph-gradient,graph-gradient", "there is a @main_gradient already", "give it another name"),
        ("graph-gradient{to=slope replace=true}", "either to be called @slope, or to replace @main", ""),
        ("graph-fuse,graph-gradient", "graph.fused has no derivative", "differentiate before the pass graph-fuse"),
    ],
)
def test_what_makes_no_sense_is_refused(pipeline: str, message: str, note: str) -> None:
    error = refused(SQUARES, pipeline)
    assert message in str(error)
    assert note in " ".join(error.notes)


WITHOUT = """
func.func @main(%x: tensor<2x2xf32>, %at: tensor<1x2xi64>, %u: tensor<1x2xf32>) -> tensor<2x2xf32> {
  %a = graph.exp %x : tensor<2x2xf32>
  %y = graph.scatter_elements %a at %at to %u axis 0 reduction "max"
      : (tensor<2x2xf32>, tensor<1x2xi64>, tensor<1x2xf32>) -> tensor<2x2xf32> loc("pick")
  %z = graph.add %a, %x : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  func.return RESULT : tensor<2x2xf32>
}
"""


def test_an_op_without_a_derivative_is_named_with_its_place() -> None:
    error = refused(WITHOUT.replace("RESULT", "%y"), "graph-gradient{wrt=0}")
    assert error.loc is not None
    assert error.loc.endswith(':4:3 ("pick")')
    assert error.message == 'graph.scatter_elements with the reduction "max" has no derivative'
    assert error.status == UNSUPPORTED


def test_an_op_without_a_derivative_that_plays_no_part_does_no_harm(make: Make) -> None:
    func = functions(make(WITHOUT.replace("RESULT", "%z")).after("graph-gradient{wrt=0}").module)["main_gradient"]
    assert "scatter_elements" not in ops(func)


def test_a_contraction_with_a_wider_accumulator_is_refused() -> None:
    text = """
    func.func @main(%x: tensor<2x2xf16>) -> tensor<2x2xf32> {
      %y = graph.matmul %x, %x accumulate f32 : (tensor<2x2xf16>, tensor<2x2xf16>) -> tensor<2x2xf32>
      func.return %y : tensor<2x2xf32>
    }"""
    error = refused(text, "graph-gradient")
    assert "graph.matmul that accumulates in f32 has no derivative" in str(error)
    assert "bad.mlir:3" in str(error)


@pytest.mark.parametrize("pool", ["global_average_pool", "global_max_pool"])
def test_images_in_blocks_are_refused(pool: str) -> None:
    text = f"""
    func.func @main(%x: tensor<1x2x4x4x16xf32>) -> tensor<1x2x1x1x16xf32> {{
      %y = graph.{pool} %x layout "NCHW16c" : tensor<1x2x4x4x16xf32> -> tensor<1x2x1x1x16xf32>
      func.return %y : tensor<1x2x1x1x16xf32>
    }}"""
    error = refused(text, "graph-gradient")
    assert error.message == f'graph.{pool} in the layout "NCHW16c" has no derivative'
    assert error.notes == ("differentiate before the pass layout",)


def test_unknown_sizes_are_refused() -> None:
    text = """
    func.func @main(%x: tensor<?xf32> {graph.dims = ["N"]}) -> tensor<?xf32> {
      %y = graph.exp %x : tensor<?xf32>
      func.return %y : tensor<?xf32>
    }"""
    assert "needs shapes that are known" in str(refused(text, "graph-gradient"))


# against another implementation


def test_a_small_network_has_the_gradients_that_torch_gives(make: Make) -> None:
    torch: Any = pytest.importorskip("torch")
    program = make("""
    func.func @main(%x: tensor<2x3x7x6xf32>, %w: tensor<4x3x3x3xf32>, %b: tensor<4xf32>) -> tensor<2x4xf32> {
      %c = graph.conv %x, %w, %b strides [2, 1] pads [1, 1, 1, 1] dilations [1, 1]
          : (tensor<2x3x7x6xf32>, tensor<4x3x3x3xf32>, tensor<4xf32>) -> tensor<2x4x4x6xf32>
      %g = graph.gelu %c : tensor<2x4x4x6xf32>
      %p = graph.max_pool %g kernel_shape [3, 3] strides [1, 2] pads [1, 1, 1, 1] dilations [1, 1]
          : tensor<2x4x4x6xf32> -> tensor<2x4x4x3xf32>
      %m = graph.global_average_pool %p : tensor<2x4x4x3xf32> -> tensor<2x4x1x1xf32>
      %f = graph.reshape %m : tensor<2x4x1x1xf32> -> tensor<2x4xf32>
      %y = graph.softmax %f axis 1 : tensor<2x4xf32> -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }""").after("graph-gradient")
    arrays, seed = [numbers(2, 3, 7, 6), numbers(4, 3, 3, 3), numbers(4)], numbers(2, 4)
    found = run_graph(functions(program.module)["main_gradient"], [*arrays, seed], program.ctx.weights)
    x, w, b = (torch.tensor(array, requires_grad=True) for array in arrays)
    y = torch.nn.functional.gelu(torch.nn.functional.conv2d(x, w, b, stride=(2, 1), padding=1))
    y = torch.nn.functional.max_pool2d(y, 3, stride=(1, 2), padding=1).mean((2, 3)).softmax(1)
    y.backward(torch.tensor(seed))
    for mine, theirs in zip(found, (x, w, b), strict=True):
        np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-4, atol=1e-6)
