# SPDX-License-Identifier: Apache-2.0
"""
One training step of the digits network as a program: forward, loss, gradients, new weights.

The loss of a batch is a function at graph level whose weights are arguments. `graph-gradient` makes of it a function
that returns the loss and its gradients; `append_update` adds the step of gradient descent, weight - rate * gradient.
What comes out is a graph like any other, and is compiled like any other: one call trains on one batch.

    python examples/digits/training_step.py --machine gemmini-fp32 --steps 100

trains with it, and with the NumPy code of `train.py` on the same batches, and prints the loss and how far apart the
weights are. Exit status: 0 if the loss fell and the weights agree, else 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import train
from numpy.typing import NDArray
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.compiler import LoadedProgram
from penstock.runtime.engine import Backend, Engine, compile_program
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]
Step = Callable[[train.Weights, Array, Array, float], tuple[float, train.Weights]]
"""Trains on a batch of images and labels at a rate; returns the loss before, and the new weights."""

BATCH = train.BATCH
RATE = 0.1
WEIGHTS = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc.weight", "fc.bias")
TOLERANCE = 1e-3
"""How far a weight may be from NumPy's after training: sums in f32 in another order, step upon step."""

LOSS = """
func.func @main(
    %image: tensor<{n}x1x8x8xf32> {{graph.name = "image"}},
    %label: tensor<{n}xi64> {{graph.name = "label"}},
    %w1: tensor<16x1x3x3xf32> {{graph.name = "conv1.weight"}}, %b1: tensor<16xf32> {{graph.name = "conv1.bias"}},
    %w2: tensor<32x16x3x3xf32> {{graph.name = "conv2.weight"}}, %b2: tensor<32xf32> {{graph.name = "conv2.bias"}},
    %w3: tensor<10x512xf32> {{graph.name = "fc.weight"}}, %b3: tensor<10xf32> {{graph.name = "fc.bias"}})
    -> (tensor<f32> {{graph.name = "loss"}}) {{
  %conv1 = graph.conv %image, %w1, %b1 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
      : (tensor<{n}x1x8x8xf32>, tensor<16x1x3x3xf32>, tensor<16xf32>) -> tensor<{n}x16x8x8xf32>
  %relu1 = graph.relu %conv1 : tensor<{n}x16x8x8xf32>
  %pool1 = graph.max_pool %relu1 kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1]
      : tensor<{n}x16x8x8xf32> -> tensor<{n}x16x4x4xf32>
  %conv2 = graph.conv %pool1, %w2, %b2 strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
      : (tensor<{n}x16x4x4xf32>, tensor<32x16x3x3xf32>, tensor<32xf32>) -> tensor<{n}x32x4x4xf32>
  %relu2 = graph.relu %conv2 : tensor<{n}x32x4x4xf32>
  %flat = graph.reshape %relu2 : tensor<{n}x32x4x4xf32> -> tensor<{n}x512xf32>
  %scores = graph.gemm %flat, %w3, %b3 trans_b true
      : (tensor<{n}x512xf32>, tensor<10x512xf32>, tensor<10xf32>) -> tensor<{n}x10xf32>
  %logs = graph.log_softmax %scores axis 1 : tensor<{n}x10xf32> -> tensor<{n}x10xf32>
  %classes = graph.constant dense<[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]> : tensor<10xi64>
  %column = graph.reshape %label : tensor<{n}xi64> -> tensor<{n}x1xi64>
  %is_class = graph.equal %column, %classes : (tensor<{n}x1xi64>, tensor<10xi64>) -> tensor<{n}x10xi1>
  %target = graph.cast %is_class : tensor<{n}x10xi1> -> tensor<{n}x10xf32>
  %taken = graph.mul %logs, %target : (tensor<{n}x10xf32>, tensor<{n}x10xf32>) -> tensor<{n}x10xf32>
  %each = graph.reduce_sum %taken axes [1] keepdims false : tensor<{n}x10xf32> -> tensor<{n}xf32>
  %mean = graph.reduce_mean %each axes [0] keepdims false : tensor<{n}xf32> -> tensor<f32>
  %loss = graph.neg %mean : tensor<f32>
  func.return %loss : tensor<f32>
}}
"""
"""The mean cross-entropy of a batch of {n} images."""


def loss_program(batch: int = BATCH) -> LoadedProgram:
    """The loss as a program: images, labels and weights in, one number out."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("loss.mlir", LOSS.format(n=batch))).module
    return LoadedProgram(module, ctx, Path("training_step.mlir"))


def training_step(batch: int = BATCH) -> LoadedProgram:
    """The step as a program: images, labels, weights and rate in, loss and new weights out."""
    program = loss_program(batch)
    wrt = ",".join(f'"{name}"' for name in WEIGHTS)
    pipeline = f"graph-gradient{{wrt={wrt} seed=one primal=true replace=true}},cse,dce"
    run_passes(program.ctx, program.module, read_pipeline(pipeline))
    append_update(program.module)
    return program


def append_update(module: ModuleOp) -> None:
    """Turn each gradient that @main returns into the weight that gradient descent makes of it, and take the rate."""
    (main,) = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    block = main.body.block
    last = block.last_op
    assert isinstance(last, ReturnOp)
    loss, *gradients = last.arguments
    names = [entry.data.get("graph.name") for entry in main.arg_attrs or ()]
    weights = [block.args[names.index(StringAttr(name))] for name in WEIGHTS]
    rate = block.insert_arg(TensorType(f32, []), len(block.args))
    rate.name_hint = "rate"
    last.detach()
    last.erase()
    results = [loss, *(_descended(block.add_op, *pair, rate) for pair in zip(weights, gradients, strict=True))]
    block.add_op(ReturnOp(*results))
    main.function_type = FunctionType.from_lists(block.arg_types, [value.type for value in results])
    main.arg_attrs = _named(*names, "rate")
    main.res_attrs = _named("loss", *WEIGHTS)


def _descended(emit: Callable[[Operation], None], weight: SSAValue, gradient: SSAValue, rate: SSAValue) -> SSAValue:
    change = graph.MulOp(gradient, rate)
    new = graph.SubOp(weight, change)
    emit(change)
    emit(new)
    return new.result


def _named(*names: Any) -> ArrayAttr[DictionaryAttr]:
    texts = [name if isinstance(name, StringAttr) else StringAttr(name) for name in names]
    return ArrayAttr([DictionaryAttr({"graph.name": text}) for text in texts])


def compiled(machine: str | None = None, *, until: str | None = None, backend: Backend = "native") -> Engine:
    """The step, compiled for a machine, or for the host."""
    return compile_program(training_step(), machine=machine, until=until, backend=backend)


def by(engine: Engine) -> Step:
    """Trains with a compiled step."""

    def step(weights: train.Weights, images: Array, labels: Array, rate: float) -> tuple[float, train.Weights]:
        given = [images, labels, *(weights[name] for name in WEIGHTS), np.float32(rate)]
        loss, *new = engine(*given)
        return float(loss), dict(zip(WEIGHTS, new, strict=True))

    return step


def by_numpy(weights: train.Weights, images: Array, labels: Array, rate: float) -> tuple[float, train.Weights]:
    """Trains with the code of `train.py`."""
    scores, kept = train.forward(weights, images)
    gradient = train.backward(weights, kept, scores, labels)
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = -float(logs[np.arange(len(labels)), labels].mean())
    return loss, {name: (weights[name] - np.float32(rate) * gradient[name]).astype(np.float32) for name in WEIGHTS}


def _load(name: str) -> tuple[Array, Array]:
    """Images and labels of a file that `train.py` wrote."""
    with np.load(Path(__file__).with_name(name)) as file:
        return file["images"], file["labels"]


def batches(count: int) -> Iterator[tuple[Array, Array]]:
    """`count` batches of images and labels of the training set, in a fixed order."""
    images, labels = _load("training_images.npz")
    rng = np.random.default_rng(train.SEED)
    for _ in range(count):
        chosen = rng.choice(len(images), BATCH, replace=False)
        yield images[chosen], labels[chosen]


def trained(step: Step, given: Sequence[tuple[Array, Array]]) -> tuple[list[float], train.Weights]:
    """The losses and the weights after training on batches."""
    weights, losses = train.initial_weights(), list[float]()
    for images, labels in given:
        loss, weights = step(weights, images, labels, RATE)
        losses.append(loss)
    return losses, weights


def apart(first: train.Weights, second: train.Weights) -> float:
    """The largest difference of two sets of weights."""
    return max(float(np.abs(first[name] - second[name]).max()) for name in WEIGHTS)


def main() -> int:
    """Train, and report."""
    parser = argparse.ArgumentParser(description="train the digits network with a compiled step")
    parser.add_argument("--machine", help="the machine to compile for; by default the host")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    given = list(batches(arguments.steps))
    engine = compiled(arguments.machine)

    start = time.perf_counter()
    losses, weights = trained(by(engine), given)
    seconds = (time.perf_counter() - start) / len(given)
    reference, expected = trained(by_numpy, given)
    images, labels = _load("test_images.npz")
    accuracy = float((train.forward(weights, images)[0].argmax(1) == labels).mean())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(given)} steps (NumPy: {reference[-1]:.4f})")
    print(f"weights at most {apart(weights, expected):.1e} from NumPy's; held-out accuracy {accuracy:.1%}")
    print(f"{1e3 * seconds:.2f} ms a step of {BATCH} images", file=sys.stderr)
    return 0 if losses[-1] < losses[0] and apart(weights, expected) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
