# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch through its compiler and through `penstock.compile`, against PyTorch itself."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sampling import sweep

torch: Any = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch_functions  # noqa: E402
import torch_models  # noqa: E402

import penstock  # noqa: E402
from penstock.dialects.diagnostics import UNSUPPORTED, InputWarning, UserError  # noqa: E402
from penstock.runtime.dynamic_engine import DynamicEngine  # noqa: E402
from penstock.runtime.engine import Engine  # noqa: E402

TOLERANCE = 1e-5
"""The largest difference over the largest value: PyTorch sums in another order."""
QUICK = ("dlrm", "gpt")


def leaves(results: Any) -> list[Any]:
    return torch.utils._pytree.tree_flatten(results)[0]


def check(found: Sequence[Any], expected: Any) -> None:
    wanted = leaves(expected)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        ours = torch.as_tensor(ours)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        bound = TOLERANCE * theirs.double().abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=bound)


@contextmanager
def remarks() -> Generator[list[str]]:
    """What Penstock warns of inside; PyTorch begins anew."""
    torch._dynamo.reset()
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [each.message.message for each in caught if isinstance(each.message, InputWarning)]


@pytest.mark.parametrize("name", sweep(list(torch_models.MODELS), lambda name: name in QUICK))
def test_a_model_compiles_whole_and_computes_what_pytorch_does(name: str) -> None:
    model, inputs = torch_models.model(name)
    with remarks() as found, torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        # fullgraph: PyTorch's tracer leaves nothing out either
        check(leaves(torch.compile(model, backend="penstock", fullgraph=True)(*inputs)), model(*inputs))
    assert found == []


@pytest.mark.parametrize("name", sweep(list(torch_models.MODELS), lambda name: name == "dlrm"))
def test_a_module_becomes_an_engine_of_its_example_inputs(name: str) -> None:
    model, inputs = torch_models.model(name)
    engine = penstock.compile(model, example_inputs=inputs)
    assert isinstance(engine, Engine)
    with torch.no_grad():
        check(engine.run([each.numpy() for each in inputs]), model(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", torch_functions.FUNCTIONS)
def test_functions_compute_what_pytorch_does(name: str) -> None:
    function = torch_functions.FUNCTIONS[name]
    with remarks() as found, torch.no_grad():
        ours, theirs = (
            leaves(each()) for each in (torch.compile(function, backend="penstock", fullgraph=True), function)
        )
    assert found == []
    for one, other in zip(ours, theirs, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        tolerance = 1e-2 if other.dtype in (torch.half, torch.bfloat16) else 1e-4
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_a_compiled_model_takes_batches_of_any_size() -> None:
    model, (x,) = torch_models.model("mixer")
    with remarks() as found, torch.no_grad():
        compiled = torch.compile(model, backend="penstock", dynamic=True)
        for batch in (2, 5, 3, 5):
            y = torch.randn(batch, *x.shape[1:])
            check([compiled(y)], model(y))
    assert found == []


def test_an_exported_program_keeps_its_open_sizes() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(layers, (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    engine = penstock.compile(exported)
    assert isinstance(engine, DynamicEngine)
    for size in (1, 7):
        x = torch.randn(size, 4)
        with torch.no_grad():
            check(engine.run([x.numpy()]), layers(x))


def test_new_parameters_are_seen_and_frozen_ones_are_watched() -> None:
    layer = torch.nn.Linear(4, 3).eval()
    x = torch.randn(2, 4)
    for options in ({}, {"freezing": True}):
        with remarks() as found, torch.no_grad():
            compiled = torch.compile(layer, backend="penstock", options=options)
            check([compiled(x)], layer(x))
            layer.weight.mul_(-2)
            check([compiled(x)], layer(x))
        assert found == []


def test_state_and_views_are_as_in_pytorch() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x.sum(0))
            x[0] = 7
            return x.t(), self.seen * 2

    ours, theirs = Counter(), Counter()
    x, y = torch.randn(2, 3), torch.empty(2, 3)
    y.copy_(x)
    with remarks() as found, torch.no_grad():
        compiled = torch.compile(ours, backend="penstock")
        for _ in range(2):
            check(leaves(compiled(x)), theirs(y))
    check([x, ours.seen], (y, theirs.seen))
    transposed, _ = compiled(x)
    transposed[0, 0] = 9
    assert x[0, 0] == 9, "it is a view of the input"
    assert found == []


def test_gradients_are_those_of_pytorch() -> None:
    model, (x,) = torch_models.model("unet")
    gradients: list[list[Any]] = []
    with remarks() as found:
        for each in (torch.compile(model, backend="penstock"), model):
            model.zero_grad()
            each(x).square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    check(*gradients)
    (remark,) = found
    assert "runs in PyTorch, not in Penstock: an operator of PyTorch has no form in ONNX:" in remark
    assert remark.endswith("aten.convolution_backward")


def test_a_graph_with_an_operator_that_is_not_there_runs_in_pytorch() -> None:
    def inverse(x: Any) -> Any:
        return torch.linalg.inv(x) @ x.exp()

    x = torch.randn(3, 3) + 4 * torch.eye(3)
    with remarks() as found, torch.no_grad():
        check([torch.compile(inverse, backend="penstock")(x)], inverse(x))
    (remark,) = found
    assert remark.endswith("an operator of PyTorch has no form in ONNX: aten.linalg_inv_ex")


def test_types_other_than_single_floats_pass_through() -> None:
    def mixed(x: Any, index: Any, mask: Any, half: Any) -> Any:
        return x.double() * 2, index + 1, ~mask, half * half

    arguments = (torch.randn(4), torch.arange(4), torch.arange(4) > 1, torch.randn(4).bfloat16())
    with remarks() as found, torch.no_grad():
        check(leaves(torch.compile(mixed, backend="penstock")(*arguments)), mixed(*arguments))
    assert found == []


def test_what_cannot_be_compiled_is_refused_in_one_line() -> None:
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="compiled for example inputs, and none are given"):
        penstock.compile(layer)
    with pytest.raises(UserError, match="example inputs are for a module of PyTorch"):
        penstock.compile("model.onnx", example_inputs=(1,))

    class Stateful(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x)
            return self.seen * 2

    with pytest.raises(UserError, match='writes to "seen", and a graph has no state') as refused:
        penstock.compile(Stateful(), example_inputs=(torch.ones(3),))
    assert refused.value.status == UNSUPPORTED

    class Inverse(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.inv(x)

    with pytest.raises(UserError, match=r"has no form in ONNX: aten\.linalg_inv_ex") as refused:
        penstock.compile(Inverse(), example_inputs=(torch.eye(3),))
    assert refused.value.status == UNSUPPORTED
    for options, message in (({"machina": "vta"}, 'no option "machina"'), ({"backend": "gpu"}, "gpu")):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=message):
            torch.compile(layer, backend="penstock", options=options)(torch.ones(1, 2))


def test_a_machine_is_compiled_for() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).eval()
    x = torch.randn(4, 16)
    options = {"machine": "gemmini-fp32", "backend": "interpreter"}
    with remarks() as found, torch.no_grad():
        check([torch.compile(layers, backend="penstock", options=options)(x)], layers(x))
    assert found == []
