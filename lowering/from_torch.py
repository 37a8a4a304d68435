# SPDX-License-Identifier: Apache-2.0
"""
Into the IR from PyTorch: an exported program, or a module, becomes an ONNX model by PyTorch's own exporter.

It decomposes what is composed, and has an ONNX form for most operators of PyTorch. The extra `torch` brings it. See
https://docs.pytorch.org/docs/stable/onnx_export.html.
"""

from __future__ import annotations

import logging
import operator
import re
import sys
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, pip_install

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["TorchModel", "is_torch_model", "model_of_torch", "tracing"]


class TorchModel(Protocol):
    """What a module of PyTorch and an exported program have, in words that need no PyTorch."""

    def parameters(self) -> Iterable[Any]:
        """The parameters."""
        ...


def is_torch_model(model: object) -> bool:
    """Whether `model` is a module of PyTorch or an exported program, without importing PyTorch."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    export: Any = sys.modules.get("torch.export")
    return isinstance(model, (torch.nn.Module, *([export.ExportedProgram] if export is not None else [])))


def model_of_torch(model: Any, example_inputs: Sequence[Any] | Mapping[str, Any] | None = None) -> ModelProto:
    """
    The ONNX model of a `torch.export.ExportedProgram`, or of a `torch.nn.Module` that is called with `example_inputs`,
    in order or by name; all sizes of a module are those of the examples. Parameters and buffers become weights.

    Raises UserError for a module without examples, one that writes to its inputs or buffers, or that cannot be
    exported, and with status 3 for operators of PyTorch without an ONNX form, by name.
    """
    torch = _torch()
    exporter: Any = import_module("torch.onnx")
    if isinstance(model, torch.nn.Module):
        model = _exported(torch, model, example_inputs)
    elif example_inputs is not None:
        raise UserError("an exported program has its inputs already, so it takes no example inputs")
    if any(_writes(node.target) for node in model.graph.nodes):
        # Only without operators that write to their operands is it known to what they write. What cannot be brought
        # into this form the exporter refuses, and says why.
        with suppress(Exception), _quiet(), tracing():
            model = model.run_decompositions({})
    signature = model.graph_signature
    if written := [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]:
        words = ", ".join(f'"{name}"' for name in written)
        raise UserError(f"the program writes to {words}, and a graph has no state", status=UNSUPPORTED)
    _refuse_further_results(model.graph)
    try:
        with _quiet(), tracing():
            found = exporter.export(model, dynamo=True, verbose=False)
    except Exception as error:
        raise _refusal(error) from None
    return cast("ModelProto", found.model_proto)


def _torch() -> Any:
    try:
        import_module("onnxscript")
        return import_module("torch")
    except ImportError as error:
        raise UserError(f"models of PyTorch need {error.name}", notes=[pip_install("torch")]) from None


def _exported(torch: Any, module: Any, example_inputs: Sequence[Any] | Mapping[str, Any] | None) -> Any:
    if example_inputs is None:
        raise UserError(
            "a module of PyTorch is compiled for example inputs, and none are given",
            notes=["penstock.compile(module, example_inputs=(x,))"],
        )
    by_name = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    in_order = () if by_name else tuple(example_inputs)
    try:
        with _quiet(), tracing(), torch.no_grad():
            return torch.export.export(module, in_order, by_name)
    except UserError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"PyTorch cannot export the module: {type(error).__name__}: {first}") from None


def _writes(target: Any) -> bool:
    """Whether an operator writes to an operand."""
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable


def _refuse_further_results(graph: Any) -> None:
    """Raise UserError for results, meant for gradients, that PyTorch's exporter writes as placeholders."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target is operator.getitem and node.args[1] > 0 and node.users:
            source = str(node.args[0].target)
            if any(word in source for word in _ONE_RESULT):
                raise UserError(
                    f"result {node.args[1]} of {source} has no form in ONNX: it is for gradients", status=UNSUPPORTED
                )


_ONE_RESULT = ("native_batch_norm", "scaled_dot_product", "native_dropout")
"""Operators of which only the first result is computed."""


@contextmanager
def tracing() -> Generator[None]:
    """What is traced inside is made of operators that are not PyTorch's own fast ones for its CPU or GPU."""
    torch, attention = _torch(), import_module("torch.nn.attention")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration", UserWarning)  # of no use here, and said of the next line
        with torch.backends.mkldnn.flags(enabled=False), attention.sdpa_kernel(attention.SDPBackend.MATH):
            yield


def _refusal(error: BaseException) -> UserError:
    """What PyTorch's exporter says, in which operators without an ONNX form are named."""
    words: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        words.append(str(cause))
        cause = cause.__cause__
    text = "\n".join(words)
    operators = sorted(set(re.findall(r"OpOverload\(op='([\w.]+)'", text)))
    if operators:
        named = ", ".join(operators)
        return UserError(f"an operator of PyTorch has no form in ONNX: {named}", status=UNSUPPORTED)
    summary = text.rpartition("## Exception summary")[2]
    first = next((line for line in summary.splitlines() if line.strip()), type(error).__name__)
    return UserError(f"PyTorch's exporter fails: {first}", status=UNSUPPORTED)


@contextmanager
def _quiet() -> Generator[None]:
    """Without what the exporter tells of packages that it would make use of."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
