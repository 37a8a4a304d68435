# SPDX-License-Identifier: Apache-2.0
"""Calibration, quantisation: ranges, scales, schemes, remarks, accuracy, and inputs that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp, StringAttr, i8

import penstock
from penstock.dialects import graph
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.quantization.quantizer import REMARK
from penstock.passes.graph.quantization.ranges import ranges_text, read_ranges
from penstock.passes.graph.quantization.scales import affine_scale, power_of_two_scale, symmetric_scale, weight_exponent
from penstock.passes.graph.quantize import Scheme
from penstock.runtime.compiler import LoadedProgram, import_program, load_input
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify
from penstock.runtime.quantization import calibrate

Array = NDArray[Any]
Node = tuple[str, str, str, dict[str, Any]]
SCHEMES: tuple[Scheme, ...] = ("qdq", "symmetric", "power-of-two")


def model_of(
    nodes: Sequence[Node],
    shapes: Mapping[str, Sequence[int]],
    constants: Mapping[str, Array],
) -> ModelProto:
    """Nodes (type, inputs, output, attributes), inputs by shape, and initialisers; the last output is the model's."""
    made = [helper.make_node(kind, given.split(), [out], name=out, **kw) for kind, given, out, kw in nodes]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_empty_tensor_value_info(nodes[-1][2])]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    proto = helper.make_graph(made, "test", inputs, outputs, tensors)
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual(seed: int = 0) -> ModelProto:
    """A network with what integers go through: a residual, a concatenation, pools, a clip, padding and a mean."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes: list[Node] = [
        ("Conv", "x w1 b1", "c1", {"pads": [1] * 4}),
        ("Relu", "c1", "r1", {}),
        ("Conv", "r1 w2", "c2", {"pads": [1] * 4, "group": 2}),
        ("Add", "c2 shift", "c3", {}),
        ("Clip", "c3 low high", "k", {}),
        ("Add", "k r1", "sum", {}),
        ("Concat", "sum r1", "both", {"axis": 1}),
        ("MaxPool", "both", "p", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Mul", "p p", "square", {}),
        ("Sub", "square p", "rest", {}),
        ("AveragePool", "rest", "avg", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
        ("GlobalAveragePool", "avg", "g", {}),
        ("Flatten", "g", "flat", {}),
        ("MatMul", "flat f", "m", {}),
        ("Add", "m fb", "y", {}),
        ("Softmax", "y", "s", {}),
    ]
    constants: dict[str, Array] = {
        "w1": normal(4, 3, 3, 3),
        "b1": normal(4, 1).reshape(-1),
        "w2": normal(4, 2, 3, 3),
        "shift": normal(4, 1).reshape(4, 1, 1),
        "low": np.asarray(-0.5, np.float32),
        "high": np.asarray(1.5, np.float32),
        "f": normal(8, 5),
        "fb": normal(5, 1).reshape(-1),
    }
    return model_of(nodes, {"x": [1, 3, 6, 6]}, constants)


def images(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 3, 6, 6)).astype(np.float32)


# ranges


def test_calibration_records_the_extremes_of_every_value_by_the_name_of_its_node() -> None:
    nodes: list[Node] = [("Relu", "x", "r", {}), ("Neg", "r", "n", {})]
    program = import_program(model_of(nodes, {"x": [1, 2]}, {}), {})
    samples = [[np.asarray([[a, b]], np.float32)] for a, b in ((-1, 2), (3, -4))]
    found = calibrate(program.module, program.ctx.weights, samples)
    assert found == {"x": (-4.0, 3.0), "r": (0.0, 3.0), "n": (-3.0, 0.0)}
    assert list(found) == ["x", "r", "n"]


def test_values_of_one_name_are_numbered_in_the_order_of_the_graph() -> None:
    text = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %a = graph.relu %x : tensor<2xf32> loc("n")
      %b = graph.neg %a : tensor<2xf32> loc("n")
      %c = graph.exp %b : tensor<2xf32>
      %0 = graph.exp %c : tensor<2xf32>
      func.return %0 : tensor<2xf32>
    }
    """
    program = parsed(text)
    found = calibrate(program.module, program.ctx.weights, [[np.zeros(2, np.float32)]])
    assert list(found) == ["x", "n", "n#1", "c", "graph.exp#3"]


def parsed(text: str) -> LoadedProgram:
    from penstock.dialects.context import make_context
    from penstock.lowering.from_text import SourceText, parse_text

    ctx = make_context()
    return LoadedProgram(parse_text(ctx, SourceText("test.mlir", text)).module, ctx, Path("test.mlir"))


@pytest.mark.parametrize("method", ["percentile", "mse"])
def test_the_other_methods_cut_off_what_is_rare(method: Any) -> None:
    program = import_program(model_of([("Relu", "x", "y", {})], {"x": [1, 1000000]}, {}), {})
    x = np.random.default_rng(0).standard_normal((1, 1000000)).astype(np.float32)
    x[0, 0], x[0, 1] = 10.0, -10.0
    found = calibrate(program.module, program.ctx.weights, [[x]], method, 99.9)
    low, high = found["x"]
    assert 3 < -low < 8
    assert 3 < high < 8
    assert found["y"][0] == 0


def test_percentiles_of_a_uniform_sample_are_where_they_should_be() -> None:
    program = import_program(model_of([("Relu", "x", "y", {})], {"x": [1, 100001]}, {}), {})
    x = np.linspace(-1, 1, 100001, dtype=np.float32)[None]
    low, high = calibrate(program.module, program.ctx.weights, [[x]], "percentile", 90)["x"]
    assert abs(low + 0.9) < 2e-3
    assert abs(high - 0.9) < 2e-3


def test_a_table_of_ranges_survives_a_file(tmp_path: Path) -> None:
    table = {"x": (-0.1, 1 / 3), 'a "name"': (0.0, 0.0)}
    (tmp_path / "r.json").write_text(ranges_text(table))
    assert read_ranges(tmp_path / "r.json") == table
    assert json.loads((tmp_path / "r.json").read_text())["x"] == [-0.1, 1 / 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "ranges are an object"),
        ("{", "no JSON"),
        ('{"x": [1]}', 'the range of "x" is not two finite numbers'),
        ('{"x": [0, NaN]}', 'the range of "x" is not two finite numbers'),
        ('{"x": [2, 1]}', 'the range of "x" ends before it begins'),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_ranges(tmp_path / "r.json")
    assert caught.value.loc == str(tmp_path / "r.json")


# scales


def test_scales_reach_their_ranges_and_hold_zero() -> None:
    affine = affine_scale((-1.0, 3.0))
    assert affine.zero == -64
    assert affine.range[0] == pytest.approx(-1, abs=0.02)
    assert affine.range[1] == pytest.approx(3, abs=0.02)
    assert affine_scale((2.0, 3.0)).zero == -128
    assert symmetric_scale((-2.54, 1.0)).factor == pytest.approx(0.02)
    assert power_of_two_scale((0.0, 127.0)).factor == 1
    assert power_of_two_scale((-128.4, 0.0)).factor == 1
    assert power_of_two_scale((0.0, 128.0)).factor == 2
    assert affine_scale((0.0, 0.0)).factor == symmetric_scale((0.0, 0.0)).factor == 1


def test_weights_give_up_their_largest_where_that_loses_less() -> None:
    many = np.full(1000, 0.9, np.float32)
    assert weight_exponent(np.append(many, np.float32(1.1))) == -7
    assert weight_exponent(np.append(many, np.float32(1.9))) == -6
    assert weight_exponent(np.zeros(3, np.float32)) in (0, -1)


# schemes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_network_of_all_forms_keeps_its_meaning_and_lowers_bit_for_bit(scheme: Scheme) -> None:
    model = residual()
    exact = import_program(model, {})
    done = penstock.quantize(model, images(16), scheme=scheme)
    verify(done.program.module)
    x = images(1, seed=5)
    (expected,) = run_graph(exact.module, [x], exact.ctx.weights)
    (found,) = done(x)
    assert np.abs(found - expected).max() < 0.05
    integer = done.integer()
    (whole,) = integer(x)
    assert np.abs(whole - found).max() < (1e-9 if scheme == "power-of-two" else 0.02)
    assert {(name, reason.split(":")[0]) for name, reason in done.remarks} == {("s", "graph.softmax")}
    worst = min(report.sqnr for report in done.layers if report.sqnr is not None)
    assert worst > (12 if scheme == "power-of-two" else 20)
    (lowered,) = done.compile(backend="interpreter")(x)
    np.testing.assert_allclose(lowered, whole, rtol=1e-6)


def test_shifts_and_powers_of_two_leave_no_float_inside() -> None:
    done = penstock.quantize(residual(), images(8), scheme="power-of-two")
    for op in done.program.module.walk():
        if isinstance(op, graph.ConvOp | graph.MatmulOp):
            assert [tensor_of(operand).element_type for operand in op.operands] == [i8, i8]
        if isinstance(op, graph.DequantizeLinearOp):
            assert [use.operation.name for use in op.result.uses] == ["graph.softmax"]
        if isinstance(op, graph.QuantizeLinearOp):
            assert op.x is done.program.module.body.block.first_op.body.block.args[0]  # type: ignore[union-attr]
    shifts = [report.layer.shift for report in done.layers if report.layer.operation == "graph.conv"]
    assert len(shifts) == 2
    assert all(shift is not None and shift > 0 for shift in shifts)
    assert all(np.log2(report.layer.scale.factor).is_integer() for report in done.layers)


def remarked(module: ModuleOp) -> dict[str, str]:
    remarks = {op.name: op.attributes.get(REMARK) for op in module.walk()}
    return {name: remark.data for name, remark in remarks.items() if isinstance(remark, StringAttr)}


def test_what_has_no_integer_form_says_so_and_stays_in_float() -> None:
    nodes: list[Node] = [
        ("Relu", "x", "r", {}),
        ("MatMul", "r w", "m", {}),
        ("Exp", "m", "e", {}),
        ("MatMul", "e w", "y", {}),
    ]
    model = model_of(nodes, {"x": [2, 3]}, {"w": np.eye(3, dtype=np.float32)})
    x = np.asarray([[1, -2, 3], [0.5, 0, 2]], np.float32)
    for scheme in SCHEMES:
        done = penstock.quantize(model, x, scheme=scheme)
        assert remarked(done.program.module) == {"graph.exp": "it has no integer form"}
        assert np.abs(done(x)[0] - np.exp(np.maximum(x, 0))).max() < 1.5


def test_a_value_without_a_range_keeps_its_op_in_float() -> None:
    model = model_of([("MatMul", "x w", "y", {})], {"x": [1, 2]}, {"w": np.ones((2, 2), np.float32)})
    done = penstock.quantize(model, ranges={"x": (-1.0, 1.0)})
    assert remarked(done.program.module) == {"graph.matmul": 'the range of "y" is not known'}


def test_sums_that_may_not_fit_are_not_made() -> None:
    w = np.full((70000, 1), 1e-3, np.float32)
    done = penstock.quantize(
        model_of([("MatMul", "x w", "y", {})], {"x": [1, 70000]}, {"w": w}), np.ones((1, 70000), "f4")
    )
    assert "70000 products" in remarked(done.program.module)["graph.matmul"]


def test_a_bias_far_above_the_products_keeps_its_place() -> None:
    constants = {"w": np.full((2, 2), 1e-9, np.float32), "b": np.asarray([100.0, -50.0], np.float32)}
    model = model_of([("Gemm", "x w b", "y", {})], {"x": [1, 2]}, constants)
    x = np.asarray([[1, -1]], np.float32)
    for scheme in SCHEMES:
        (y,) = penstock.quantize(model, x, scheme=scheme).integer()(x)
        np.testing.assert_allclose(y, [[100, -50]], atol=0.6)


def test_the_scale_and_addend_of_a_gemm_go_into_its_constants() -> None:
    constants = {"w": np.asarray([[1, 2], [3, -4]], np.float32), "b": np.asarray([4.0, 8.0], np.float32)}
    nodes: list[Node] = [("Gemm", "x w b", "y", {"alpha": 0.5, "beta": 2.0, "transB": 1})]
    x = np.asarray([[1, -1], [0.25, 0.5]], np.float32)
    for scheme in SCHEMES:
        done = penstock.quantize(model_of(nodes, {"x": [2, 2]}, constants), x, scheme=scheme)
        expected = 0.5 * x @ constants["w"].T + 2 * constants["b"]
        np.testing.assert_allclose(done.integer()(x)[0], expected, atol=0.25)


def test_one_scale_for_all_channels_loses_more_than_one_for_each() -> None:
    w = np.asarray([[100.0, 0.01], [50.0, -0.02]], np.float32)
    model = model_of([("MatMul", "x w", "y", {})], {"x": [1, 2]}, {"w": w})
    x = np.asarray([[0.5, 0.25]], np.float32)
    ranges = {"x": (-0.5, 0.5), "y": (-0.01, 0.01)}
    errors = [
        abs(float(penstock.quantize(model, ranges=ranges, per_channel=each)(x)[0][0, 1])) for each in (True, False)
    ]
    assert errors[1] == 0  # the small column is rounded away
    assert errors[0] == pytest.approx(0, abs=1e-4)


def test_integer_arithmetic_leaves_float_graphs_alone() -> None:
    program = import_program(residual(), {})
    before = str(program.module)
    run_passes(program.ctx, program.module, read_pipeline("integer-arithmetic"))
    assert str(program.module) == before


def test_the_digits_lose_less_than_a_point_and_run_on_an_int8_machine(repository: Path) -> None:
    folder = repository / "examples" / "digits"
    with np.load(folder / "test_images.npz") as file:
        held, labels = file["images"][::2], file["labels"][::2]
    with np.load(folder / "calibration_images.npz") as file:
        calibration = file["image"]
    program = load_input(folder / "digits.onnx")
    exact = [run_graph(program.module, [image[None]], program.ctx.weights)[0] for image in held]
    right = (np.concatenate(exact).argmax(1) == labels).mean()
    for scheme in ("qdq", "power-of-two"):
        done = penstock.quantize(folder / "digits.onnx", calibration, scheme=scheme)
        scores = np.concatenate([done(image[None])[0] for image in held])
        assert right - (scores.argmax(1) == labels).mean() < 0.01
        engine = done.compile("gemmini" if scheme == "qdq" else None, backend="interpreter")
        np.testing.assert_array_equal(engine(held[:1])[0], done.integer()(held[:1])[0])


# calibration inputs

BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: [], "there are no calibration inputs"),
    (lambda: np.zeros((0, 3, 6, 6), np.float32), "there are no calibration inputs"),
    (lambda: np.zeros((2, 3, 6, 5), np.float32), r'"x" has the shape \(2, 3, 6, 5\)'),
    (lambda: np.zeros((2, 3, 6, 6)), "elements of type float64"),
    (lambda: {"y": np.zeros((2, 3, 6, 6), np.float32)}, 'there is no input "y"'),
    (lambda: np.full((2, 3, 6, 6), np.nan, np.float32), "holds NaN or infinities, in run 0"),
    (lambda: np.full((2, 3, 6, 6), np.inf, np.float32), "holds NaN or infinities, in run 0"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_calibration_inputs_that_do_not_fit_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        penstock.quantize(residual(), make())


def test_batches_are_filled_or_refused() -> None:
    model = model_of([("Relu", "x", "y", {})], {"x": [4, 2]}, {})
    with pytest.raises(UserError, match='6 calibration inputs "x" do not fill batches of 4'):
        penstock.quantize(model, np.zeros((6, 2), np.float32))
    assert penstock.quantize(model, np.ones((8, 2), np.float32)).ranges["x"] == (1.0, 1.0)
    assert penstock.quantize(model, np.ones((3, 4, 2), np.float32)).ranges["x"] == (1.0, 1.0)


def test_inputs_with_different_numbers_of_runs_are_refused() -> None:
    model = model_of([("Add", "a b", "y", {})], {"a": [1, 2], "b": [1, 2]}, {})
    given = {"a": np.zeros((3, 2), np.float32), "b": np.zeros((2, 2), np.float32)}
    with pytest.raises(UserError, match='different numbers of runs: "a" 3, "b" 2'):
        penstock.quantize(model, given)
    with pytest.raises(UserError, match="give calibration inputs by name"):
        penstock.quantize(model, np.zeros((3, 2), np.float32))


def test_a_value_that_overflows_is_named() -> None:
    model = model_of([("Exp", "x", "e", {}), ("Relu", "e", "y", {})], {"x": [1]}, {})
    with pytest.raises(UserError, match='the value "e" is not finite'):
        penstock.quantize(model, np.asarray([1000.0], np.float32))


def test_ranges_of_another_program_are_refused() -> None:
    with pytest.raises(UserError, match="no value of the program has a name"):
        penstock.quantize(residual(), ranges={"nothing": (0.0, 1.0)})


def test_an_unknown_scheme_or_method_is_refused() -> None:
    with pytest.raises(UserError, match="no scheme"):
        penstock.quantize(residual(), images(1), scheme="qdp")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no method"):
        penstock.quantize(residual(), images(1), method="max")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a percentile is above 50"):
        penstock.quantize(residual(), images(1), method="percentile", percentile=10)
