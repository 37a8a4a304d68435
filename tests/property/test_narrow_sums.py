# SPDX-License-Identifier: Apache-2.0
"""
Every operator that sums or multiplies up, on f16 and bf16 of random shapes, at every level, against float64.

One model holds a node for each operator; what ONNX's reference evaluator makes of the same numbers in float64 is the
truth. A result that is computed in f32 and rounded once lies within half a unit in the last place of it: the bound is
that, and a little for the roundings in f32. A sum that is rounded at every step misses it, which the mutant shows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import base
from penstock.lowering import accumulation
from penstock.lowering.graph_to_tensor import indexing, kernel
from penstock.passes.analysis.kernels import partition, rounds_each_step, share_on_machine
from penstock.passes.tensor import tensor_builder
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import LoadedProgram, compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import PassFault, read_pipeline, run_passes
from penstock.runtime.signature import signature_of

Array = NDArray[Any]

TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}
"""Half the distance from 1 to the next number."""
LOOSE = {"Attention": 3.0, "LayerNormalization": 4.0, "GroupNormalization": 4.0, "RMSNormalization": 4.0}
"""Units for operators that ONNX rounds on the way: attention its powers, the others what they then scale."""

try:
    HAS_COMPILER = bool(find_compiler())
except UserError:
    HAS_COMPILER = False  # pyright: ignore[reportConstantRedefinition]


@dataclass
class Case:
    """A node: floats among its operands become inputs, integers are known, None is left out."""

    operator: str
    operands: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    truth: Callable[[Array], Array] | None = None
    """What it computes of its first operand, where the reference evaluator does not know it in float64."""


Draw = Callable[[np.random.Generator], Case]


def numbers(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers of one sign, so that sums grow, and lose the terms that come last if they are rounded at every step."""
    return rng.uniform(0.5, 1.5, shape)


def near_one(rng: np.random.Generator, *shape: int) -> Array:
    """Factors whose products stay in range."""
    return rng.uniform(0.93, 1.07, shape)


def many(rng: np.random.Generator) -> int:
    return int(rng.integers(150, 300))


def image(rng: np.random.Generator) -> Array:
    return numbers(rng, 1, 3, int(rng.integers(16, 20)), int(rng.integers(16, 20)))


def reduction(operator: str, draw: Callable[..., Array] = numbers) -> Draw:
    def case(rng: np.random.Generator) -> Case:
        shape, axis = [int(size) for size in rng.integers(2, 4, 3)], int(rng.integers(0, 3))
        shape[axis] = many(rng)
        return Case(operator, [draw(rng, *shape), np.array([axis])], {"keepdims": int(rng.integers(0, 2))})

    return case


def along(operator: str, **attributes: Any) -> Draw:
    return lambda rng: Case(operator, [numbers(rng, 3, many(rng))], attributes)


def pool(operator: str, **attributes: Any) -> Draw:
    return lambda rng: Case(
        operator, [image(rng)], {"kernel_shape": [13, 14], "strides": [int(rng.integers(1, 3)), 1], **attributes}
    )


def global_lp_pool(rng: np.random.Generator) -> Case:
    return Case("GlobalLpPool", [image(rng)], {"p": 2}, lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)))


def lrn(rng: np.random.Generator) -> Case:
    channels = many(rng)

    def truth(x: Array) -> Array:
        sums = np.stack([(x[:, max(0, c - 50) : c + 51] ** 2).sum(1) for c in range(channels)], axis=1)
        return x / (1 + 9 / 101 * sums) ** 0.75

    return Case("LRN", [numbers(rng, 1, channels, 2, 2)], {"size": 101, "alpha": 9.0, "beta": 0.75}, truth)


def standardised(rng: np.random.Generator) -> Case:
    def truth(x: Array) -> Array:
        return (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)

    return Case("MeanVarianceNormalization", [rng.standard_normal((1, 4, 12, 13)) + 4], {}, truth)


def conv(rng: np.random.Generator) -> Case:
    groups, inputs = int(rng.integers(1, 3)), int(rng.integers(20, 30))
    operands = numbers(rng, 1, groups * inputs, 4, 5), numbers(rng, 2 * groups, inputs, 3, 3), numbers(rng, 2 * groups)
    return Case("Conv", operands, {"group": groups, "pads": [1, 1, 0, 0], "strides": [1, 2]})


def conv_transpose(rng: np.random.Generator) -> Case:
    inputs = many(rng)
    return Case("ConvTranspose", [numbers(rng, 1, inputs, 3, 3), numbers(rng, inputs, 2, 2, 2)], {"strides": [1, 2]})


def product(operator: str, **attributes: Any) -> Draw:
    def case(rng: np.random.Generator) -> Case:
        k = many(rng)
        bias = [numbers(rng, 4)] if operator == "Gemm" else []
        return Case(operator, [numbers(rng, 3, k), numbers(rng, k, 4), *bias], attributes)

    return case


def triple(rng: np.random.Generator) -> Case:
    k = many(rng)
    return Case("Einsum", [numbers(rng, 3, k), numbers(rng, 3, k), numbers(rng, k)], {"equation": "ik,ik,k->i"})


def norm(operator: str, shape: Sequence[int], *vectors: int, **attributes: Any) -> Draw:
    def case(rng: np.random.Generator) -> Case:
        x = rng.standard_normal(shape) + float(rng.uniform(3, 5))
        return Case(operator, [x, *(numbers(rng, size) for size in vectors)], attributes)

    return case


def scatter(operator: str, reduction: str) -> Draw:
    def case(rng: np.random.Generator) -> Case:
        count, draw = many(rng), numbers if reduction == "add" else near_one
        indices = rng.integers(0, 2, (count, 1 if operator == "ScatterND" else 3))
        return Case(operator, [draw(rng, 2, 3), indices, draw(rng, count, 3)], {"reduction": reduction})

    return case


def attention(rng: np.random.Generator) -> Case:
    keys = many(rng)
    q, k = rng.standard_normal((1, 2, 4, 8)), rng.standard_normal((1, 2, keys, 8))
    return Case("Attention", [q, k, numbers(rng, 1, 2, keys, 4)])


def resize(rng: np.random.Generator) -> Case:
    sizes = np.array([1, 1, 3, int(rng.integers(3, 6))])
    return Case("Resize", [numbers(rng, 1, 1, 40, 50), None, None, sizes], {"mode": "linear", "antialias": 1})


DRAWS: dict[str, Draw] = {
    **{
        name: reduction(name)
        for name in (
            *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2"),
            *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
        )
    },
    "ReduceProd": reduction("ReduceProd", near_one),
    "AveragePool": pool("AveragePool"),
    "AveragePool, padded": pool("AveragePool", pads=[2, 1, 2, 1]),
    "LpPool": pool("LpPool", p=2),
    "GlobalAveragePool": lambda rng: Case("GlobalAveragePool", [image(rng)]),
    "GlobalLpPool": global_lp_pool,
    "Conv": conv,
    "Conv, depthwise": lambda rng: Case("Conv", [image(rng), numbers(rng, 3, 1, 13, 13)], {"group": 3}),
    "ConvTranspose": conv_transpose,
    "MatMul": product("MatMul"),
    "Gemm": product("Gemm", alpha=0.3, beta=1.7),
    "Einsum, a product": product("Einsum", equation="ik,kj->ij"),
    "Einsum": triple,
    "Softmax": along("Softmax", axis=-1),
    "LogSoftmax": along("LogSoftmax", axis=-1),
    "CumSum": lambda rng: Case("CumSum", [numbers(rng, 2, many(rng)), np.array(1)]),
    "LRN": lrn,
    "LpNormalization": along("LpNormalization", p=2, axis=-1),
    "InstanceNormalization": norm("InstanceNormalization", (1, 4, 12, 13), 4, 4),
    "LayerNormalization": norm("LayerNormalization", (3, 150), 150, 150),
    "GroupNormalization": norm("GroupNormalization", (1, 4, 12, 13), 4, 4, num_groups=2),
    "RMSNormalization": norm("RMSNormalization", (3, 150), 150),
    "MeanVarianceNormalization": standardised,
    "ScatterElements, add": scatter("ScatterElements", "add"),
    "ScatterElements, mul": scatter("ScatterElements", "mul"),
    "ScatterND, add": scatter("ScatterND", "add"),
    "Sum": lambda rng: Case("Sum", [numbers(rng, 7, 9) for _ in range(12)]),
    "Mean": lambda rng: Case("Mean", [numbers(rng, 7, 9) for _ in range(12)]),
    "Attention": attention,
    "Resize": resize,
}


@dataclass
class Model:
    """A model with a node for each case, the numbers that go in, and the truth."""

    proto: ModelProto
    feeds: dict[str, Array]
    truth: list[Array]


def model_of(seed: int, type: str, names: Sequence[str] = tuple(DRAWS)) -> Model:
    """A model of the cases `names`, drawn with `seed`."""
    rng = np.random.default_rng(seed)
    nodes: list[Any] = []
    exact: dict[int, Array] = {}
    feeds: dict[str, Array] = {}
    known: list[TensorProto] = []
    for number, name in enumerate(names):
        case = DRAWS[name](rng)
        operands = [f"x{number}_{index}" if array is not None else "" for index, array in enumerate(case.operands)]
        for operand, array in zip(operands, case.operands, strict=True):
            if array is not None and array.dtype.kind == "f":
                feeds[operand] = array.astype(TYPES[type])
            elif array is not None:
                known.append(numpy_helper.from_array(array.astype(np.int64), operand))
        nodes.append(helper.make_node(case.operator, operands, [f"y{number}"], name=f"n{number}", **case.attributes))
        if case.truth is not None:
            exact[number] = case.truth(feeds[operands[0]].astype(np.float64))

    def proto(element: int, left_out: Collection[int] = ()) -> ModelProto:
        chosen = [number for number in range(len(names)) if number not in left_out]
        infos = [helper.make_tensor_value_info(name, element, array.shape) for name, array in feeds.items()]
        outputs = [helper.make_empty_tensor_value_info(f"y{number}") for number in chosen]
        graph = helper.make_graph([nodes[number] for number in chosen], "sums", infos, outputs, known)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)

    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = iter(cast(Any, ReferenceEvaluator(proto(TensorProto.DOUBLE, exact))).run(None, wide))
    truth = [exact[number] if number in exact else next(found) for number in range(len(names))]
    return Model(proto(TensorProto.FLOAT16 if type == "f16" else TensorProto.BFLOAT16), feeds, truth)


def faults(outputs: Sequence[Array], model: Model, type: str, names: Sequence[str] = tuple(DRAWS)) -> dict[str, float]:
    """The cases whose error is beyond the bound, and how many times."""
    found: dict[str, float] = {}
    for name, output, truth in zip(names, outputs, model.truth, strict=True):
        assert output.dtype == TYPES[type], name
        assert output.shape == truth.shape, name
        largest = float(np.abs(truth).max())
        # An element next to nothing has been computed from others that are not.
        bound = LOOSE[name] * UNIT[type] * largest if name in LOOSE else 1.02 * UNIT[type] * np.abs(truth)
        bound = bound + 1e-5 * largest + float(ml_dtypes.finfo(TYPES[type]).smallest_subnormal)  # pyright: ignore
        worst = float((np.abs(output.astype(np.float64) - truth) / bound).max())
        if not worst <= 1:
            found[name] = worst
    return found


@dataclass
class NoNarrowSums:
    """Looks after every pass for a reduction that is rounded at every step."""

    passes: list[str] = field(default_factory=list[str])

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        pass

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.passes.append(module_pass.name)
        narrow = [op for op in module.walk() if isinstance(op, GenericOp) and rounds_each_step(op)]
        assert not narrow, f"after {module_pass.name}: {narrow[0]}"


SUMMING = (
    *("ReduceSum", "ReduceMean", "ReduceProd", "AveragePool", "AveragePool, padded", "GlobalAveragePool"),
    *("Conv", "Conv, depthwise", "MatMul", "Gemm", "Softmax", "LogSoftmax", "LRN", "Attention"),
    *("ScatterElements, add", "ScatterElements, mul", "ScatterND, add"),
)
"""The operators that are one of the graph level that sums; the others become several, with these among them."""


def check(seed: int, type: str, names: Sequence[str], until: str) -> None:
    """Hold the cases `names` to the truth at every level down to `until`."""
    model = model_of(seed, type, names)
    program = import_program(model.proto, {}, name="sums")
    module, signature = program.module, signature_of(program.module)
    watch = NoNarrowSums()
    for level in ("graph", "tensor", "loop", "c"):
        if level == "c" and not HAS_COMPILER:
            continue
        if level in ("tensor", "loop"):
            compile_module(module, program.ctx, None, level, observers=[watch])
        engine = Engine(module, program.ctx, signature, "native" if level == "c" else "interpreter")
        assert faults(engine.run(list(model.feeds.values()), {}), model, type, names) == {}, level
        if level == until:
            return
    assert {"graph-to-tensor", "tensor-to-loop"} <= set(watch.passes)


@pytest.mark.parametrize("type", TYPES)
def test_an_operator_that_sums_narrow_floats_rounds_once(type: str) -> None:
    check(0, type, list(DRAWS), "graph")


@pytest.mark.parametrize("type", TYPES)
def test_every_level_rounds_a_sum_of_narrow_floats_once(type: str) -> None:
    check(1, type, SUMMING, "c")


@pytest.mark.slow
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("seed", range(2, 8))
def test_every_operator_rounds_once_at_every_level(seed: int, type: str) -> None:
    check(seed, type, list(DRAWS), "c")


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h100-sm", "smaug-smv"])
def test_a_machine_that_multiplies_f16_does_all_products_and_rounds_once(machine: str) -> None:
    names = ["Conv", "MatMul", "Gemm", "GlobalAveragePool", "Softmax", "ReduceSum"]
    model = model_of(3, "f16", names)
    program = import_program(model.proto, {}, name="sums")
    signature = signature_of(program.module)
    compile_module(program.module, program.ctx, machine, "accel", observers=[NoNarrowSums()])
    assert share_on_machine(partition(program.module)) == 1
    for backend in ("interpreter", "native") if HAS_COMPILER else ("interpreter",):
        engine = Engine(program.module, program.ctx, signature, backend)
        assert faults(engine.run(list(model.feeds.values()), {}), model, "f16", names) == {}, backend


def lowered(model: Model) -> tuple[LoadedProgram, list[Array]]:
    """A model at tensor level, without other passes, and what it computes in the order of its loops."""
    program = import_program(model.proto, {}, name="sums")
    run_passes(program.ctx, program.module, read_pipeline("graph-to-tensor"))
    return program, run_module(program.module, list(model.feeds.values()), program.ctx.weights, ordered=True)


def itself(element: Attribute) -> Attribute:
    return element


def never(generic: GenericOp) -> bool:
    return False


def test_the_bound_catches_an_accumulator_of_the_elements_type(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(1, "f16", SUMMING)
    assert faults(lowered(model)[1], model, "f16", SUMMING) == {}
    for place in (accumulation, indexing, kernel, base):
        monkeypatch.setattr(place, "accumulator_of", itself)
    with pytest.raises(PassFault) as caught:
        lowered(model)
    assert "a reduction carries f16" in str(caught.value.__cause__)
    monkeypatch.setattr(tensor_builder, "rounds_each_step", never)
    program, outputs = lowered(model)
    assert set(faults(outputs, model, "f16", SUMMING)) == set(SUMMING)
    assert any(rounds_each_step(op) for op in program.module.walk() if isinstance(op, GenericOp))


CARRIED = """func.func @main(%x: tensor<4096xf16>, %zero: tensor<f16>) -> tensor<f16> {{
  %y = linalg.generic {{
      indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]}}
      ins(%x : tensor<4096xf16>) outs(%zero : tensor<f16>) {{
  ^bb0(%a: f16, %total: f16):
    %new = arith.{combine} %total, %a : f16
    linalg.yield %new : f16
  }} -> tensor<f16>
  func.return %y : tensor<f16>
}}"""


@pytest.mark.parametrize(("combine", "rounds", "result"), [("addf", True, 2048), ("maximumf", False, 1)])
def test_a_sum_that_is_written_in_f16_is_rounded_at_every_step(combine: str, rounds: bool, result: float) -> None:
    ctx = make_context()
    module = Parser(ctx, CARRIED.format(combine=combine)).parse_module()
    (generic,) = [op for op in module.walk() if isinstance(op, GenericOp)]
    assert rounds_each_step(generic) == rounds
    inputs = [np.ones(4096, np.float16), np.zeros((), np.float16)]
    assert run_module(module, inputs, ctx.weights)[0] == result
    run_passes(ctx, module, read_pipeline("tensor-to-loop,mem-plan"))
    assert run_module(module, inputs, ctx.weights)[0] == result
    if HAS_COMPILER:
        assert load_native(module).run(inputs)[0] == result
