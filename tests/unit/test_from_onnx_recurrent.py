# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM nodes become ordinary ops that compute what onnxruntime computes, in the interpreter and in C."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from sampling import examples, sweep
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, NameLoc, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

import penstock
from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.lowering.from_onnx import import_model
from penstock.runtime.compiler import LoadedProgram, compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.signature import signature_of

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPERATORS = tuple(GATES)
ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
BOUNDED = ("Sigmoid", "Tanh", "HardSigmoid", "Softsign")
UNBOUNDED = ("Relu", "LeakyRelu", "Elu", "Softplus")
PLAIN = (*BOUNDED, *UNBOUNDED[:3])
WITH_NUMBERS = ("Affine", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "LeakyRelu", "Elu")


@dataclass(frozen=True)
class Case:
    """A model of one recurrent node, called `rec`, with an input X and outputs Y, Y_h and, of LSTM, Y_c."""

    operator: str
    steps: int = 4
    batch: int | str = 3
    features: int = 5
    hidden: int = 6
    direction: str = "forward"
    bias: bool = True
    initial: bool = True
    peephole: bool = False
    lengths: Sequence[int] | None = None
    outputs: Sequence[str] | None = None
    constant: bool = True
    """Whether the weights are; else they are inputs."""
    fixed_input: bool = False
    """Whether X is a constant too."""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def batch_first(self) -> bool:
        return bool(self.attributes.get("layout", 0))

    @functools.cached_property
    def arrays(self) -> dict[str, Array]:
        """X and all weights."""
        rng = np.random.default_rng(0)
        gates, sides, batch = GATES[self.operator], self.directions, self.batch if isinstance(self.batch, int) else 3
        lead = (batch, self.steps) if self.batch_first else (self.steps, batch)
        state = (batch, sides) if self.batch_first else (sides, batch)
        found: dict[str, Array] = {
            "X": rng.normal(size=(*lead, self.features)),
            "W": rng.normal(0, 0.5, (sides, gates * self.hidden, self.features)),
            "R": rng.normal(0, 0.4, (sides, gates * self.hidden, self.hidden)),
            "B": rng.normal(0, 0.4, (sides, 2 * gates * self.hidden)),
            "initial_h": rng.normal(0, 0.5, (*state, self.hidden)),
            "initial_c": rng.normal(0, 0.5, (*state, self.hidden)),
            "P": rng.normal(0, 0.5, (sides, 3 * self.hidden)),
        }
        return {name: array.astype(np.float32) for name, array in found.items()} | (
            {} if self.lengths is None else {"sequence_lens": np.array(self.lengths, np.int32)}
        )

    @property
    def inputs(self) -> list[str]:
        lstm = self.operator == "LSTM"
        names = [
            *("X", "W", "R"),
            "B" if self.bias else "",
            "" if self.lengths is None else "sequence_lens",
            "initial_h" if self.initial else "",
            "initial_c" if self.initial and lstm else "",
            "P" if self.peephole else "",
        ]
        while not names[-1]:
            names.pop()
        return names

    @functools.cached_property
    def model(self) -> ModelProto:
        names = ["Y", "Y_h", "Y_c"] if self.operator == "LSTM" else ["Y", "Y_h"]
        used = names if self.outputs is None else self.outputs
        node = helper.make_node(
            self.operator,
            self.inputs,
            [name if name in used else "" for name in names],
            name="rec",
            hidden_size=self.hidden,
            direction=self.direction,
            **self.attributes,
        )
        given = [name for name in self.inputs if name]
        shapes: dict[str, list[int | str]] = {name: list(self.arrays[name].shape) for name in given}
        if isinstance(self.batch, str):
            shapes["X"][0 if self.batch_first else 1] = self.batch
        free = set[str]() if self.fixed_input else {"X"}
        free |= set[str]() if self.constant else set(given) - {"X"}
        graph_proto = helper.make_graph(
            [node],
            "test",
            [
                helper.make_tensor_value_info(
                    name, TensorProto.INT32 if name == "sequence_lens" else TensorProto.FLOAT, shapes[name]
                )
                for name in given
                if name in free
            ],
            [helper.make_empty_tensor_value_info(name) for name in used],
            [numpy_helper.from_array(self.arrays[name], name) for name in given if name not in free],
        )
        return helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)

    @property
    def feeds(self) -> dict[str, Array]:
        return {value.name: self.arrays[value.name] for value in self.model.graph.input}

    @property
    def expected(self) -> list[Array]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(self.model.SerializeToString(), options).run(None, self.feeds)

    @property
    def program(self) -> LoadedProgram:
        return import_program(self.model, {"N": 3} if isinstance(self.batch, str) else {}, name="recurrent")

    def run(self, level: str = "graph") -> list[Array]:
        program = self.program
        signature = signature_of(program.module)
        if level != "graph":
            compile_module(program.module, program.ctx, None, level)
        backend = "interpreter" if level == "graph" else "native"
        return Engine(program.module, program.ctx, signature, backend).run([], self.feeds)

    def check(self, level: str = "graph") -> None:
        """The outputs are those of onnxruntime, up to rounding."""
        ours, theirs = self.run(level), self.expected
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.shape == other.shape
            scale = np.abs(other).max()
            assert scale > 1e-3
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5 * scale)


def activated(operator: str, word: str, **attributes: Any) -> Case:
    """A layer all of whose activations are `word`."""
    return Case(operator, steps=3, attributes={"activations": [word] * ACTIVATIONS[operator], **attributes})


def in_turn(words: Sequence[str]) -> Callable[[Case], bool]:
    """Whether a layer has one of the words that its operator has if each word is that of one operator."""
    return lambda case: words.index(case.attributes["activations"][0]) % 3 == OPERATORS.index(case.operator)


def main_of(module: ModuleOp) -> FuncOp:
    return next(op for op in module.ops if isinstance(op, FuncOp))


def name_of(op: Operation) -> str:
    assert isinstance(op.location, NameLoc)
    return op.location.desc.data


def names_of(case: Case) -> list[str]:
    """The names of the ops that compute something."""
    module, _ = import_model(case.model)
    ops = [op for op in main_of(module).walk() if op.results]
    return [name_of(op) for op in ops if not isinstance(op, graph.ConstantOp)]


def products_of(case: Case) -> list[str]:
    module, _ = import_model(case.model)
    return [name_of(op) for op in main_of(module).walk() if isinstance(op, graph.MatmulOp)]


CASES = [
    *(Case(operator, direction=word) for operator in OPERATORS for word in ("forward", "reverse", "bidirectional")),
    *(Case(operator, bias=False, initial=False) for operator in OPERATORS),
    *(Case(operator, initial=False) for operator in OPERATORS),
    *(Case(operator, steps=1, initial=False) for operator in OPERATORS),
    *(Case(operator, lengths=[4, 1, 3], direction="bidirectional") for operator in OPERATORS),
    *(Case(operator, lengths=[2, 1, 3], direction="reverse", initial=False) for operator in OPERATORS),
    *(Case(operator, lengths=[4, 4, 4]) for operator in OPERATORS),
    *(Case(operator, attributes={"clip": 0.4}) for operator in OPERATORS),
    *(Case(operator, constant=False, direction="bidirectional") for operator in OPERATORS),
    *(Case(operator, fixed_input=True, lengths=[4, 2, 3]) for operator in OPERATORS),
    *(Case(operator, batch="N") for operator in OPERATORS),
    *(
        Case("GRU", initial=initial, bias=bias, constant=constant, attributes={"linear_before_reset": 1})
        for initial, bias, constant in (
            (True, True, True),
            (False, True, True),
            (False, False, True),
            (True, True, False),
        )
    ),
    Case("LSTM", peephole=True),
    Case("LSTM", peephole=True, initial=False, direction="bidirectional"),
    Case("LSTM", peephole=True, constant=False),
    Case("LSTM", peephole=True, attributes={"clip": 0.5}),
    Case("LSTM", attributes={"input_forget": 1}),
    Case("LSTM", peephole=True, attributes={"input_forget": 1}),
    # Which activation a gate has is read in one place for all operators.
    *sweep((activated(operator, word) for operator in OPERATORS for word in PLAIN), in_turn(PLAIN)),
    *sweep(
        (
            activated(operator, word, activation_alpha=[0.3] * 3, activation_beta=[0.6] * 3)
            for operator in OPERATORS
            for word in WITH_NUMBERS
        ),
        in_turn(WITH_NUMBERS),
    ),
    Case(
        "LSTM",
        direction="bidirectional",
        attributes={
            "activations": ["HardSigmoid", "Tanh", "LeakyRelu", "Sigmoid", "ScaledTanh", "Softsign"],
            "activation_alpha": [0.3, 0.1, 0.7],
            "activation_beta": [0.4, 1.2],
        },
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operator}-{case.direction}")
def test_every_form_of_the_operators_computes_what_onnxruntime_computes(case: Case) -> None:
    case.check()


@pytest.mark.parametrize(
    "case",
    [
        *(Case(operator, direction="bidirectional", lengths=[4, 2, 3]) for operator in OPERATORS),
        Case("GRU", attributes={"linear_before_reset": 1}),
        Case("LSTM", peephole=True, attributes={"clip": 0.5}),
    ],
    ids=lambda case: case.operator,
)
def test_they_do_so_in_c(case: Case) -> None:
    case.check("loop")


@examples(25)
@given(data=st.data())
def test_random_layers_compute_what_onnxruntime_computes(data: st.DataObject) -> None:
    operator, batch, steps = (
        data.draw(st.sampled_from(OPERATORS)),
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 5)),
    )
    flags = {name: data.draw(st.booleans()) for name in ("bias", "initial", "peephole", "constant")}
    words = st.lists(st.sampled_from(BOUNDED), min_size=2 * ACTIVATIONS[operator], max_size=2 * ACTIVATIONS[operator])
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    chosen = data.draw(words)[: ACTIVATIONS[operator] * (2 if direction == "bidirectional" else 1)]
    lengths = st.lists(st.integers(1, steps), min_size=batch, max_size=batch)
    extra = {"GRU": "linear_before_reset", "LSTM": "input_forget"}
    attributes: dict[str, Any] = {"activations": chosen}
    if operator in extra:
        attributes[extra[operator]] = int(data.draw(st.booleans()))
    Case(
        operator,
        steps,
        batch,
        data.draw(st.integers(1, 5)),
        data.draw(st.integers(1, 6)),
        direction,
        flags["bias"],
        flags["initial"],
        flags["peephole"] and operator == "LSTM",
        data.draw(st.none() | lengths),
        None,
        flags["constant"],
        attributes=attributes,
    ).check()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_with_the_batch_first_the_same_is_computed_with_dimensions_exchanged(operator: str, direction: str) -> None:
    # onnxruntime does not have this layout.
    usual = Case(operator, direction=direction, initial=False, lengths=[4, 2, 3])
    batch_first = Case(operator, direction=direction, initial=False, lengths=[4, 2, 3], attributes={"layout": 1})
    batch_first.arrays["X"] = np.ascontiguousarray(usual.arrays["X"].swapaxes(0, 1))
    sequence, *finals = batch_first.run()
    theirs = usual.expected
    np.testing.assert_allclose(sequence, theirs[0].transpose(2, 0, 1, 3), rtol=1e-4, atol=1e-5)
    for mine, other in zip(finals, theirs[1:], strict=True):
        np.testing.assert_allclose(mine, other.swapaxes(0, 1), rtol=1e-4, atol=1e-5)


def test_a_batch_first_state_is_read_with_dimensions_exchanged() -> None:
    usual, batch_first = Case("LSTM"), Case("LSTM", attributes={"layout": 1})
    for name in ("X", "initial_h", "initial_c"):
        batch_first.arrays[name] = np.ascontiguousarray(usual.arrays[name].swapaxes(0, 1))
    np.testing.assert_allclose(batch_first.run()[1][:, 0], usual.expected[1][0], rtol=1e-4, atol=1e-5)


def test_the_inputs_of_all_steps_are_multiplied_at_once_outside_the_recurrence() -> None:
    assert products_of(Case("LSTM")) == ["rec/projection", "rec/step/gates"]


def test_the_number_of_steps_does_not_change_the_program() -> None:
    few, many = ([name for name in names_of(Case("GRU", steps=steps))] for steps in (3, 300))
    assert few == many
    assert len(names_of(Case("LSTM", steps=1))) == len(names_of(Case("LSTM", steps=2)))


def test_every_weight_is_stored_once_under_the_name_of_the_input_it_comes_from() -> None:
    _, weights = import_model(Case("LSTM", direction="bidirectional").model)
    sides = [f"{name}/{side}" for side in ("forward", "reverse") for name in ("W", "R", "B")]
    origins = [name for name in weights.names() if not name.startswith("initial")]
    assert sorted("/".join(name.split("/")[:2]) for name in origins) == sorted(sides)


def test_only_the_op_that_computes_the_sequence_has_the_name_of_the_node() -> None:
    for case in (Case("LSTM"), Case("GRU", direction="bidirectional"), Case("RNN", steps=1)):
        names = names_of(case)
        assert names.count("rec") == 1
        assert names.count("Y_h") == 1
        assert len([name for name in names if not name.startswith(("rec/", "Y_"))]) == 1


def test_outputs_that_nothing_uses_are_not_built() -> None:
    names = names_of(Case("LSTM", outputs=["Y_c"]))
    assert "Y_c" in names
    assert not {"rec", "Y_h"} & set(names)
    module, _ = import_model(Case("LSTM", outputs=["Y_c"]).model)
    (loop,) = (op for op in main_of(module).walk() if isinstance(op, graph.LoopOp))
    assert len(loop.outputs) == 2


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case("LSTM", attributes={"activations": ["Sigmoid", "Tanh", "Swish"]}), "the activation Swish"),
        (Case("RNN", attributes={"activations": ["Exp"]}), "the activation Exp, which is none of ONNX's"),
        (Case("RNN", attributes={"activations": ["Affine"]}), "the activation Affine without an alpha and a beta"),
        (Case("GRU", lengths=[4, 0, 2]), "a sequence of length 0"),
    ],
    ids=["activation", "operator", "numbers", "length"],
)
def test_what_is_not_defined_is_refused_with_its_reason(case: Case, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        import_model(case.model)
    assert caught.value.status == UNSUPPORTED


@pytest.mark.parametrize("level", ["graph", "loop"])
def test_lengths_may_be_an_input(level: str) -> None:
    given = Case("LSTM", lengths=[4, 2, 3], direction="bidirectional", constant=False)
    assert {value.name for value in given.model.graph.input} > {"X", "sequence_lens"}
    given.check(level)
    if level == "graph":
        np.testing.assert_array_equal(given.run(level)[0][3, 0, 1], 0.0)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_number_of_steps_may_be_unknown(operator: str) -> None:
    case = Case(operator, direction="bidirectional")
    case.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    module, _ = import_model(case.model)
    module.verify()
    engine = penstock.compile(case.model, backend="interpreter")
    for steps in (4, 2, 4):
        given = case.arrays["X"][:steps]
        expected = onnxruntime.InferenceSession(case.model.SerializeToString()).run(None, {"X": given})
        for mine, other in zip(engine(given), expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_batch_may_be_unknown(operator: str, layout: int) -> None:
    case = Case(operator, batch="N", initial=False, direction="bidirectional", attributes={"layout": layout})
    module, _ = import_model(case.model)
    module.verify()
    types = [cast(TensorType[Attribute], type) for type in main_of(module).function_type.outputs]
    sequence, final = ([4, 2, -1, 6], [2, -1, 6]) if layout == 0 else ([-1, 4, 2, 6], [-1, 2, 6])
    shapes = [[-1 if size == DYNAMIC_INDEX else size for size in type.get_shape()] for type in types]
    assert shapes == [sequence, final, final][: len(shapes)]


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("W", (1, 23, 5), r"W must have the shape \[1, 24, 5\], found \[1, 23, 5\]"),
        ("B", (1, 24), r"B must have the shape \[1, 48\], found \[1, 24\]"),
        ("initial_c", (2, 3, 6), r"initial_c must have the shape \[1, 3, 6\], found \[2, 3, 6\]"),
    ],
)
def test_a_weight_of_another_shape_is_named(name: str, shape: tuple[int, ...], words: str) -> None:
    case = Case("LSTM")
    case.arrays[name] = np.zeros(shape, np.float32)
    with pytest.raises(UserError, match=words):
        import_model(case.model)


def test_a_state_of_another_unknown_batch_asks_for_the_size() -> None:
    model = Case("LSTM", batch="N", constant=False).model
    state = next(value for value in model.graph.input if value.name == "initial_h")
    state.type.tensor_type.shape.dim[1].dim_param = "M"
    with pytest.raises(UserError, match=r"the size M must be known: initial_h must have the shape \[1, N, 6\]"):
        import_model(model)
    import_model(model, dims={"N": 3, "M": 3})


def test_too_few_activations_are_refused() -> None:
    case = Case("LSTM", direction="bidirectional", attributes={"activations": ["Sigmoid", "Tanh", "Tanh"]})
    with pytest.raises(UserError, match="3 activations, not 6"):
        import_model(case.model)
