# SPDX-License-Identifier: Apache-2.0
"""The graph dialect: every op round-trips in both forms, infers its type, and refuses what is wrong by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from programs import parsed
from sampling import examples
from xdsl.dialects import test
from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    ModuleOp,
    Signedness,
    TensorType,
    f16,
    f32,
    f64,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.printer import Printer
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException

from penstock.dialects import graph
from penstock.dialects.graph import GraphOp, PatternKind, WeightAttr, dense_of, pattern_kind
from penstock.dialects.graph.number import number_text


def values(*types: Attribute) -> tuple[Operation, list[SSAValue]]:
    """An op that makes one value of each type."""
    op = test.TestOp(result_types=types)
    return op, list(op.results)


def t(*shape: int, element: Attribute = f32) -> TensorType[Attribute]:
    return TensorType(element, shape)


def printed(module: ModuleOp, generic: bool = False) -> str:
    stream = StringIO()
    Printer(stream, print_generic_format=generic).print_op(module)
    return stream.getvalue() + "\n"


UI8 = IntegerType(8, Signedness.UNSIGNED)
IMAGE, COLUMN, MASK = t(2, 4, 9, 8), t(3), t(5, element=i1)

PAIR = DenseIntOrFPElementsAttr.from_list(TensorType(i64, [2]), [1, -2])

UNARY: tuple[type[graph.UnaryOp], ...] = (
    graph.AbsOp,
    graph.AcosOp,
    graph.AcoshOp,
    graph.AsinOp,
    graph.AsinhOp,
    graph.AtanOp,
    graph.AtanhOp,
    graph.CeilOp,
    graph.CosOp,
    graph.CoshOp,
    graph.ErfOp,
    graph.ExpOp,
    graph.FloorOp,
    graph.HardSwishOp,
    graph.IdentityOp,
    graph.LogOp,
    graph.NegOp,
    graph.ReciprocalOp,
    graph.ReluOp,
    graph.RoundOp,
    graph.SigmoidOp,
    graph.SignOp,
    graph.SinOp,
    graph.SinhOp,
    graph.SoftplusOp,
    graph.SqrtOp,
    graph.TanOp,
    graph.TanhOp,
)
BINARY: tuple[type[graph.BinaryOp], ...] = (
    graph.AddOp,
    graph.DivOp,
    graph.MaxOp,
    graph.MinOp,
    graph.ModOp,
    graph.MulOp,
    graph.PowOp,
    graph.SubOp,
)
BITWISE: tuple[type[graph.BinaryOp], ...] = (
    graph.BitwiseAndOp,
    graph.BitwiseOrOp,
    graph.BitwiseXorOp,
    graph.ShiftLeftOp,
    graph.ShiftRightOp,
)
COMPARISONS: tuple[type[graph.CompareOp], ...] = (graph.EqualOp, graph.GreaterOp, graph.LessOp)
REDUCTIONS: tuple[type[graph.ReductionOp], ...] = (
    graph.ReduceMaxOp,
    graph.ReduceMeanOp,
    graph.ReduceMinOp,
    graph.ReduceProdOp,
    graph.ReduceSumOp,
)


def fused(x: SSAValue) -> Operation:
    block = Block(arg_types=[x.type])
    relu = graph.ReluOp(block.args[0])
    block.add_ops([relu, graph.YieldOp(relu)])
    return graph.FusedOp([x], block, pattern=PatternKind.ELEMENTWISE)


def concat(*inputs: SSAValue) -> Operation:
    return graph.ConcatOp(inputs, axis=-2)


@dataclass
class Sample:
    """An op with its operand types, and the result type that it must infer."""

    op: Callable[..., Operation]
    operands: tuple[Attribute, ...]
    expected: Attribute
    arguments: tuple[object, ...] = ()
    properties: Mapping[str, object] = field(default_factory=dict[str, object])


def sample(
    op: Callable[..., Operation],
    operands: Sequence[Attribute],
    expected: Attribute,
    *arguments: object,
    **properties: object,
) -> Sample:
    return Sample(op, tuple(operands), expected, arguments, properties)


CUBE = t(2, 3, 4)

SAMPLES: list[Sample] = [
    *(sample(op, [t(2, 3)], t(2, 3)) for op in UNARY),
    *(sample(op, [t(2, 1, 3), t(4, 1)], t(2, 4, 3)) for op in BINARY),
    *(sample(op, [t(2, 1, 3), t(4, 1)], t(2, 4, 3, element=i1)) for op in COMPARISONS),
    *(sample(op, [CUBE], t(1, 3, 1), axes=[-1, 0]) for op in REDUCTIONS),
    *(sample(op, [CUBE], t(), keepdims=False) for op in REDUCTIONS),
    sample(graph.NotOp, [MASK], MASK),
    sample(graph.AndOp, [MASK, t(element=i1)], MASK),
    sample(graph.OrOp, [MASK, MASK], MASK),
    sample(graph.PreluOp, [CUBE, t(3, 1)], CUBE),
    sample(graph.WhereOp, [t(2, 1, element=i1), t(3), t()], t(2, 3)),
    sample(graph.LeakyReluOp, [COLUMN], COLUMN, alpha=0.3),
    sample(graph.EluOp, [COLUMN], COLUMN, alpha=1e-9),
    sample(graph.SeluOp, [COLUMN], COLUMN, gamma=1234567.0),
    sample(graph.HardSigmoidOp, [COLUMN], COLUMN, alpha=0.25, beta=math.inf),
    sample(graph.GeluOp, [COLUMN], COLUMN, approximate="tanh"),
    sample(graph.ClipOp, [COLUMN], COLUMN, min=-math.inf, max=0.1),
    sample(graph.ClipOp, [t(3, element=i32)], t(3, element=i32)),
    sample(graph.CastOp, [COLUMN], t(3, element=UI8), UI8),
    sample(graph.BitcastOp, [COLUMN], t(3, element=i32), i32),
    sample(
        graph.ConvOp,
        [IMAGE, t(6, 2, 3, 3), t(6)],
        t(2, 6, 5, 6),
        strides=[2, 1],
        pads=[1, 0, 1, 2],
        dilations=[1, 2],
        group=2,
    ),
    sample(graph.ConvOp, [t(2, 9, 8, 4), t(3, 3, 4, 6)], t(2, 7, 6, 6), layout="NHWC"),
    sample(graph.ConvOp, [t(2, 3, 10), t(5, 3, 4)], t(2, 5, 7)),
    sample(graph.ConvOp, [t(1, 3, 4, 5, 6), t(2, 3, 1, 2, 3)], t(1, 2, 4, 4, 4)),
    sample(graph.MaxPoolOp, [IMAGE], t(2, 4, 4, 4), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=True),
    sample(graph.MaxPoolOp, [IMAGE], t(2, 4, 4, 3), kernel_shape=[3, 3], strides=[2, 2]),
    # The last of the three windows would begin in the padding behind the data.
    sample(graph.MaxPoolOp, [t(1, 1, 4)], t(1, 1, 2), kernel_shape=[1], strides=[2], pads=[0, 1], ceil_mode=True),
    sample(graph.AveragePoolOp, [IMAGE], IMAGE, kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=True),
    sample(graph.GlobalAveragePoolOp, [IMAGE], t(2, 4, 1, 1)),
    sample(graph.GlobalMaxPoolOp, [IMAGE], t(2, 1, 1, 8), layout="NHWC"),
    sample(graph.GemmOp, [t(4, 2), t(5, 4), t(5)], t(2, 5), alpha=0.5, trans_a=True, trans_b=True),
    sample(graph.GemmOp, [t(2, 4), t(4, 5)], t(2, 5)),
    sample(graph.MatmulOp, [t(3, 1, 4, 2), t(6, 2, 7)], t(3, 6, 4, 7)),
    sample(graph.MatmulOp, [t(2), t(6, 2, 7)], t(6, 7)),
    sample(graph.MatmulOp, [t(6, 4, 2), t(2)], t(6, 4)),
    sample(graph.MatmulOp, [t(2), t(2)], t()),
    sample(graph.MatmulOp, [t(4, 2, element=UI8), t(2, 7, element=i8)], t(4, 7, element=i32), accumulator=i32),
    sample(graph.GemmOp, [t(2, 4, element=f16), t(4, 5, element=f16), t(5)], t(2, 5), beta=2.0, accumulator=f32),
    sample(graph.ConvOp, [t(2, 3, 10, element=f16), t(5, 3, 4, element=f16), t(5)], t(2, 5, 7), accumulator=f32),
    sample(graph.QuantizeLinearOp, [CUBE, t()], t(2, 3, 4, element=UI8), element_type=UI8),
    sample(
        graph.QuantizeLinearOp,
        [IMAGE, t(8), t(8, element=i8)],
        t(2, 4, 9, 8, element=i8),
        element_type=i8,
        axis=-1,
    ),
    sample(graph.DequantizeLinearOp, [t(2, 3, element=i8), t(3), t(3, element=i8)], t(2, 3)),
    sample(graph.DequantizeLinearOp, [t(2, 3, element=i32), t(element=f16)], t(2, 3, element=f16)),
    sample(graph.BatchNormalizationOp, [IMAGE, *[t(8)] * 4], IMAGE, epsilon=1e-3, axis=-1),
    sample(graph.SoftmaxOp, [CUBE], CUBE, axis=-2),
    sample(graph.LogSoftmaxOp, [CUBE], CUBE),
    sample(graph.AttentionOp, [t(2, 5, 8), t(2, 7, 8), t(2, 7, 3)], t(2, 5, 3), scale=0.125, blocks=[4, 2]),
    sample(
        graph.AttentionOp,
        [t(2, 5, 8), t(2, 7, 8), t(2, 7, 3), t(5, 1)],
        t(3, 2, 5),
        result_perm=[2, 0, 1],
        zero_masked=True,
    ),
    sample(graph.LrnOp, [IMAGE], IMAGE, size=5, alpha=1e-3, bias=2.0),
    sample(graph.ConstantOp, [], t(4, 3), WeightAttr('a "quoted" name'), t(4, 3)),
    sample(graph.ConstantOp, [], t(2, element=i64), PAIR),
    sample(graph.ReshapeOp, [CUBE], t(3, 8), [3, -1]),
    sample(graph.ExpandOp, [t(3, 1)], t(2, 3, 1), [2, 1, 1]),
    sample(graph.TransposeOp, [CUBE], t(4, 2, 3), perm=[2, 0, 1]),
    sample(graph.LayoutTransformOp, [t(2, 6, 3, 5)], t(2, 3, 5, 2, 4), source="NCHW", target="NHWC4c"),
    sample(concat, [CUBE, t(2, 5, 4), t(2, 0, 4)], t(2, 8, 4)),
    sample(graph.PadOp, [t(2, 3)], t(4, 7), pads=[0, 1, 2, 3], value=-math.inf),
    sample(graph.PadOp, [COLUMN], t(5), pads=[1, 1], value=math.nan),
    sample(graph.SliceOp, [t(2, 4)], t(1, 2), starts=[1, 3], sizes=[1, 2], steps=[1, -2]),
    *(sample(op, [t(2, 3, element=i8), t(3, element=i8)], t(2, 3, element=i8)) for op in BITWISE),
    sample(graph.GatherOp, [CUBE, t(5, 6, element=i64)], t(2, 5, 6, 4), axis=-2),
    sample(graph.GatherElementsOp, [CUBE, t(2, 7, 3, element=i32)], t(2, 7, 3), axis=1),
    sample(graph.GatherNdOp, [CUBE, t(5, 2, element=i64)], t(5, 4)),
    sample(graph.GatherNdOp, [CUBE, t(2, 5, 1, element=UI8)], t(2, 5, 4), batch_dims=1),
    sample(graph.ScatterElementsOp, [CUBE, t(2, 7, 3, element=i64), t(2, 7, 3)], CUBE, axis=1, reduction="add"),
    sample(graph.ScatterNdOp, [CUBE, t(5, 2, element=i64), t(5, 4)], CUBE),
    sample(graph.TopKOp, [CUBE], t(2, 2, 4, element=i64), k=2, axis=1, largest=False),
    sample(fused, [COLUMN], COLUMN),
]


def sample_module(wanted: Sample) -> tuple[ModuleOp, Operation]:
    source, given_values = values(*wanted.operands)
    op = wanted.op(*given_values, *wanted.arguments, **wanted.properties)
    return ModuleOp([source, op]), op


EACH_SAMPLE = pytest.mark.parametrize(
    "wanted", SAMPLES, ids=[f"{index}-{each.op.__name__}" for index, each in enumerate(SAMPLES)]
)


@EACH_SAMPLE
def test_op_infers_its_type_and_round_trips_in_both_forms(wanted: Sample) -> None:
    module, op = sample_module(wanted)
    module.verify()
    assert [result.type for result in op.results] == [wanted.expected]
    custom, generic = printed(module), printed(module, generic=True)
    assert f'"{op.name}"' not in custom, "the custom form must not fall back to the generic one"
    for text in (custom, generic):
        again = parsed(text)
        again.verify()
        assert printed(again) == custom, "printing is a fixed point"
        assert printed(again, generic=True) == generic
    # NaN properties equal nothing, so structures are compared for the others only.
    if "nan" not in custom:
        assert parsed(custom).is_structurally_equivalent(module)


@EACH_SAMPLE
def test_a_wrong_result_type_is_refused(wanted: Sample) -> None:
    module, op = sample_module(wanted)
    if isinstance(op, graph.ConstantOp) and op.weight is not None:
        return  # only the store knows the type of a weight
    Rewriter.replace_value_with_new_type(op.results[0], t(7, 7, 7, 7, 7))
    with pytest.raises(VerifyException, match=r"7x7x7x7x7|result type"):
        module.verify()


def test_samples_cover_every_op_of_the_dialect() -> None:
    covered = {sample_module(each)[1].name for each in SAMPLES}
    # A kernel stands in the module as a function: tests/unit/test_kernels_in_graphs.py. For branches and loops see
    # tests/filecheck/graph/group.mlir and tests/property/test_branches.py.
    assert covered | {"graph.yield", "graph.kernel", "graph.if", "graph.loop"} == {op.name for op in graph.OPS}


def test_pattern_kinds_are_ordered_from_easy_to_hard_to_fuse() -> None:
    kinds = list(PatternKind)
    assert kinds == sorted(kinds, reverse=False)
    assert PatternKind.ELEMENTWISE < PatternKind.BROADCAST <= PatternKind.INJECTIVE < PatternKind.REDUCTION
    assert max(kinds) is PatternKind.OPAQUE
    assert PatternKind.COMPLEX_OUT_FUSABLE > PatternKind.REDUCTION
    assert PatternKind.OPAQUE >= PatternKind.COMPLEX_OUT_FUSABLE


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (graph.ReluOp, PatternKind.ELEMENTWISE),
        (graph.CastOp, PatternKind.ELEMENTWISE),
        (graph.AddOp, PatternKind.BROADCAST),
        (graph.WhereOp, PatternKind.BROADCAST),
        (graph.BatchNormalizationOp, PatternKind.BROADCAST),
        (graph.TransposeOp, PatternKind.INJECTIVE),
        (graph.ReduceSumOp, PatternKind.REDUCTION),
        (graph.ConvOp, PatternKind.COMPLEX_OUT_FUSABLE),
        (graph.MaxPoolOp, PatternKind.COMPLEX_OUT_FUSABLE),
        (graph.SoftmaxOp, PatternKind.OPAQUE),
    ],
)
def test_pattern_kind_of_an_op_is_its_trait(op: type[GraphOp], kind: PatternKind) -> None:
    trait = op.get_trait(graph.HasPatternKind)
    assert trait is not None
    assert trait.kind is kind


def test_pattern_kind_of_a_group_is_its_property_and_of_foreign_ops_opaque() -> None:
    source, (x,) = values(COLUMN)
    assert pattern_kind(fused(x)) is PatternKind.ELEMENTWISE
    assert pattern_kind(source) is PatternKind.OPAQUE


def test_every_op_states_a_pattern_kind_and_is_pure() -> None:
    from xdsl.traits import Pure

    for op in graph.OPS:
        assert op.has_trait(Pure), op.name
        if issubclass(op, GraphOp):
            assert op.has_trait(graph.HasPatternKind), op.name


def test_a_weight_needs_a_result_type() -> None:
    with pytest.raises(VerifyException, match="explicit result type"):
        graph.ConstantOp(WeightAttr("w"))


def test_a_constructor_refuses_what_the_verifier_would() -> None:
    _, (a, b) = values(t(2, 3), t(4))
    with pytest.raises(VerifyException, match="do not broadcast"):
        graph.AddOp(a, b)


def test_an_explicit_result_type_is_taken_and_left_to_the_verifier() -> None:
    source, (x,) = values(COLUMN)
    op = graph.ReluOp(x, result_type=t(4))
    assert op.result.type == t(4)
    with pytest.raises(VerifyException):
        ModuleOp([source, op]).verify()


FLOATS = {f16: np.float16, f32: np.float32, f64: np.float64, BFloat16Type(): ml_dtypes.bfloat16}


@given(st.sampled_from(list(FLOATS)), st.floats())
@example(f32, -math.inf)
@example(f32, math.nan)
@example(f32, 2.0**24)
@example(f32, 1234567.0)
@example(f16, 65504.0)
@example(f64, 1e22)
def test_a_float_constant_survives_printing_and_parsing(
    element: Float16Type | Float32Type | Float64Type | BFloat16Type, number: float
) -> None:
    with np.errstate(all="ignore"):
        array = np.array(number).astype(FLOATS[element])
    value = dense_of(array)
    assert value is not None
    module = ModuleOp([graph.ConstantOp(value)])
    module.verify()
    for generic in (False, True):
        (again,) = parsed(printed(module, generic)).ops
        assert isinstance(again, graph.ConstantOp)
        assert again.dense.data.data == array.tobytes()


@examples(40)
@given(st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u8"]), st.data())
def test_an_integer_constant_survives_printing_and_parsing(kind: str, data: st.DataObject) -> None:
    limits = np.iinfo(kind)
    size = data.draw(st.integers(0, 130))
    numbers = data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), min_size=size, max_size=size))
    array = np.array(numbers, np.dtype(kind))
    value = dense_of(array)
    assert value is not None
    module = ModuleOp([graph.ConstantOp(value)])
    module.verify()
    text = printed(module)
    (again,) = parsed(text).ops
    assert isinstance(again, graph.ConstantOp)
    assert again.dense.data.data == array.tobytes()
    assert printed(parsed(text)) == text


@given(st.floats())
@example(-0.0)
@example(5e-324)
def test_a_float_property_survives_printing_and_parsing(number: float) -> None:
    source, (x,) = values(COLUMN)
    module = ModuleOp([source, graph.ClipOp(x, max=number), graph.EluOp(x, alpha=_single(number))])
    text = printed(module)
    assert printed(parsed(text)) == text
    _, clip, elu = parsed(text).ops
    assert isinstance(clip, graph.ClipOp)
    assert isinstance(elu, graph.EluOp)
    assert clip.max is not None
    assert np.float64(clip.max.value.data).tobytes() == np.float64(number).tobytes()
    assert np.float32(elu.alpha.value.data).tobytes() == np.float32(_single(number)).tobytes()


def _single(number: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(number))


def test_numbers_are_printed_as_short_as_they_can_be() -> None:
    assert number_text(float(np.float32(0.1)), f32) == "0.1"
    assert number_text(0.1) == "0.1"
    assert number_text(1e-5) == "1.0e-05"
    assert number_text(6.0) == "6.0"
    assert number_text(-math.inf) == "-inf"


def test_a_constant_written_by_hand_may_have_different_floats() -> None:
    text = "%w = graph.constant dense<[1234567.0, 0xFF800000, -0.0]> : tensor<3xf32>"
    (op,) = parsed(text).ops
    op.verify()
    assert isinstance(op, graph.ConstantOp)
    assert op.dense.data.data == np.array([1234567.0, -np.inf, -0.0], np.float32).tobytes()
    assert printed(parsed(printed(parsed(text)))) == printed(parsed(text))


def test_different_floats_belong_into_the_store() -> None:
    assert dense_of(np.array([1.0, 2.0], np.float32)) is None
    assert dense_of(np.full(5, 0.25, np.float32)) is not None
    assert dense_of(np.array([0.0, -0.0], np.float32)) is None
    assert dense_of(np.full(5, np.inf, np.float32)) is not None


def test_irdl_definitions_name_each_op_after_onnx_in_snake_case() -> None:
    for op in graph.OPS:
        assert issubclass(op, IRDLOperation)
        words = op.__name__.removesuffix("Op")
        snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in words)
        assert op.name == "graph." + snake.lstrip("_")
