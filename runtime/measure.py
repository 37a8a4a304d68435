# SPDX-License-Identifier: Apache-2.0
"""Kernels of the host are measured with several tiles each, and the fastest ones become their schedules."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects import func, transform
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Region, SSAValue
from xdsl.passes import ModulePass

from penstock.dialects import alignment
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.schedule import TileAndFuseOp
from penstock.dialects.schedule_memory import TensorizeOp
from penstock.lowering.to_c import CSource, emit_c
from penstock.passes.analysis.kernels import ENTRY, kernels, machine_of, processor_of
from penstock.passes.schedule.deciding import KERNEL_TYPE, schedules_of
from penstock.passes.schedule.sections import START, decides, kernel_in, new_sequence, section_of
from penstock.passes.toolchain import load
from penstock.runtime.native import NativeModule, Parameter, build
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for

WHOLE = -1
"""The rank with which `tile` leaves a kernel to the loops that the lowering to C chooses."""
TURNS = 7
"""How often each candidate is measured, in turn with the others."""
TURN_SECONDS = 1e-3
"""Short kernels are repeated until a turn takes so long."""
GAIN = 0.98
"""The share of the time of the model's own choice below which another one is chosen: less may be noise."""


@dataclass(frozen=True)
class Candidate:
    """A kernel with one of its schedules."""

    sequence: transform.NamedSequenceOp
    """Its section of the tensor level."""
    source: CSource
    library: Future[Path]


@dataclass(frozen=True)
class MeasurePass(ModulePass):
    """
    Give each kernel of the host the schedule with which it runs fastest here.

    Requires the tensor level, before `tile`, and a machine that is the host itself and says what its registers hold.
    Every kernel is compiled and run alone, on random inputs, with the tiles that `tile` prefers by its model, with
    some that come next, and with none (its option `rank`), or as a call of a library where the host has one
    (`host-blas`). Guarantees: the program is as it was; the schedules that it
    has been given include one for each kernel with several tiles to choose from, with the fastest ones, and the
    measured times as a remark. `tile` applies them, and `--emit=schedule` prints them: given with `--schedule`, they
    make the same program without measuring. Kernels that have been given schedules are not measured. A kernel that is
    called several times is measured once, and so are equal ones.

    Choosing among kernels by their time on the machine is what TVM's tuners do, and what TensorRT calls tactics: Chen
    et al., "Learning to Optimize Tensor Programs", NeurIPS 2018. The seconds are those of the thread, the median of
    turns that alternate with the other candidates; caches are warm.

    Raises UserError for another machine, for fewer than two candidates, and without a C compiler. In the example the
    product is measured with several tiles, and it is left to `tile` to apply the fastest ones.

    Before:
    ```mlir
    func.func private @k(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %zero = arith.constant 0.0 : f32
      %empty = tensor.empty() : tensor<64x64xf32>
      %fill = linalg.generic {
        indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]
      } outs(%empty : tensor<64x64xf32>) {
      ^bb0(%old: f32):
        linalg.yield %zero : f32
      } -> tensor<64x64xf32>
      %y = linalg.generic {
        indexing_maps = [
          affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>
        ],
        iterator_types = ["parallel", "parallel", "reduction"]
      } ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%fill : tensor<64x64xf32>) {
      ^bb0(%x: f32, %w: f32, %sum: f32):
        %product = arith.mulf %x, %w : f32
        %next = arith.addf %sum, %product : f32
        linalg.yield %next : f32
      } -> tensor<64x64xf32>
      func.return %y : tensor<64x64xf32>
    }
    ```
    After (`measure` on `host-avx2`):
    ```mlir
    func.func private @k(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %zero = arith.constant 0.0 : f32
      %empty = tensor.empty() : tensor<64x64xf32>
      %fill = linalg.generic {
        indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]
      } outs(%empty : tensor<64x64xf32>) {
      ^bb0(%old: f32):
        linalg.yield %zero : f32
      } -> tensor<64x64xf32>
      %y = linalg.generic {
        indexing_maps = [
          affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>
        ],
        iterator_types = ["parallel", "parallel", "reduction"]
      } ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%fill : tensor<64x64xf32>) {
      ^bb0(%x: f32, %w: f32, %sum: f32):
        %product = arith.mulf %x, %w : f32
        %next = arith.addf %sum, %product : f32
        linalg.yield %next : f32
      } -> tensor<64x64xf32>
      func.return %y : tensor<64x64xf32>
    }
    ```
    """

    name = "measure"
    level = "tensor"

    candidates: int = 5
    """How many schedules of a kernel are measured, at most."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = processor_of(op)
        if target is None:
            raise UserError(
                "kernels are measured on a machine that is a host whose file says what its registers hold",
                loc=location_of(machine_of(op) or op),
                notes=["--machine native is the one for this CPU"],
            )
        if self.candidates < 2:
            raise UserError(f"measure: at least two candidates are measured, not {self.candidates}")
        given = schedules_of(ctx).given
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = {
                kernel.sym_name.data: self._candidates_of(kernel, target, pool)
                for kernel in kernels(op)
                if kernel.sym_name.data not in given
            }
        for name, candidates in found.items():
            if len(candidates) > 1:
                given[name] = _fastest(candidates)

    def _candidates_of(self, kernel: func.FuncOp, target: TargetOp, pool: ThreadPoolExecutor) -> list[Candidate]:
        """A kernel with schedules that differ, that of the model first; they are being compiled."""
        found: dict[str, Candidate] = {}
        for rank in (*range(self.candidates - 1), WHOLE):
            sequence, module = _lowered(kernel, target, rank)
            text = str(sequence)
            if not decides(sequence, START):
                break
            if text in found:
                continue
            source = emit_c(module)
            found[text] = Candidate(sequence, source, pool.submit(build, source))
        return list(found.values())


def _lowered(kernel: func.FuncOp, target: TargetOp, rank: int) -> tuple[transform.NamedSequenceOp, ModuleOp]:
    """A program that calls a kernel, lowered with its tiles of this rank, and what its schedule says of them."""
    ctx, name = make_context(), kernel.sym_name.data
    type = kernel.function_type
    block = Block(arg_types=type.inputs.data)
    call = func.CallOp(name, block.args, type.outputs.data)
    block.add_ops([call, func.ReturnOp(*call.results)])
    entry = func.FuncOp(ENTRY, type, Region(block))
    module = ModuleOp([target.clone(), entry, kernel.clone()])
    passes = passes_for(module, "accel", None, f"default, tile{{rank={rank}}}")
    first = next(number for number, each in enumerate(passes) if each.name == "tile")
    run_passes(ctx, module, passes[first:])
    applied = ctx.schedules.applied[name]
    sequence = new_sequence(name)
    sequence.attributes[KERNEL_TYPE] = applied.attributes[KERNEL_TYPE]
    values: dict[SSAValue, SSAValue] = {kernel_in(applied, START): sequence.body.block.args[0]}
    sequence.body.block.add_ops(each.clone(values) for each in section_of(applied, START))
    return sequence, module


def _fastest(candidates: Sequence[Candidate]) -> transform.NamedSequenceOp:
    """The schedule of the candidate that takes the least time, with a remark."""
    contexts = [NativeModule(each.source, load(each.library.result())).new_context() for each in candidates]
    inputs = [_random(each) for each in candidates[0].source.inputs]
    outputs = [alignment.empty(each.shape, each.dtype) for each in candidates[0].source.outputs]
    weights = contexts[0].module.bind(())

    def seconds(number: int, calls: int) -> float:
        started = time.thread_time()
        for _ in range(calls):
            contexts[number].run_into(outputs, inputs, weights)
        return (time.thread_time() - started) / calls

    numbers = range(len(candidates))
    for number in numbers:
        seconds(number, 1)
    calls = [max(1, round(TURN_SECONDS / max(seconds(number, 1), 1e-7))) for number in numbers]
    turns = [[seconds(number, calls[number]) for number in numbers] for _ in range(TURNS)]
    best, remark = choose([statistics.median(turn[number] for turn in turns) for number in numbers])
    _add_remark(candidates[best].sequence, remark)
    return candidates[best].sequence


def choose(seconds: Sequence[float]) -> tuple[int, str]:
    """Which candidate to take by their times, the first being that of the model, and why."""
    best = min(range(len(seconds)), key=lambda number: seconds[number])
    best = best if seconds[best] < GAIN * seconds[0] else 0
    remark = f"the fastest of {len(seconds)} that were measured: {seconds[best] * 1e6:.3g} us"
    if best:
        remark += f"; the first one by the model: {seconds[0] * 1e6:.3g} us"
    return best, remark


def _random(spec: Parameter) -> NDArray[Any]:
    """An input: from 0 to 1, and zeros of what may be an index."""
    if spec.dtype.kind not in "fV":
        return np.zeros(spec.shape, spec.dtype)
    return np.random.default_rng(0).random(spec.shape, np.float32).astype(spec.dtype)


def _add_remark(sequence: transform.NamedSequenceOp, text: str) -> None:
    """Say something of a schedule where it cuts the kernel last, or calls a library."""
    for op in reversed(sequence.body.block.ops):
        if isinstance(op, TileAndFuseOp | TensorizeOp):
            before = [] if op.remark is None else [op.remark.data]
            op.properties["remark"] = StringAttr("; ".join([*before, text]))
            return
