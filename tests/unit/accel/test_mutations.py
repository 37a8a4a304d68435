# SPDX-License-Identifier: Apache-2.0
"""One token fewer: the static check reports it, or all commands are ordered as before, which no run contradicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from corpus import CORPUS, compiled
from loop_nests import TILE, kernel_of
from mutants import keeps_order, mutants, queue_mutants, verdicts
from numpy.typing import NDArray
from redundancy import redundant_operands
from sampling import sweep
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.utils.hints import isa

from penstock.dialects.accel import DmaOp, ExecOp, WaitOp
from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.passes.accel.queues import assign_queues
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.runtime.interpreter import Order, run_module

KINDS = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "i32": np.int32}
RINGS = (("multi-buffer{depth=2}", "mem-plan"),)
PIPELINED = (("accel-pipeline", "cse"),)
QUICK = [
    ("gemmini-fp32 matmul", ()),
    ("snax-opengemm matmul", PIPELINED),
    ("smaug-smv matmul", RINGS),
    ("rapid-core-like matmul", ()),
    ("neural-cluster matmul", RINGS),
    ("vta-pynq convolution", RINGS),
]
SLOW = [(name, extra) for name in CORPUS for extra in ((), RINGS, PIPELINED) if (name, extra) not in QUICK]
FEW = [each for each in QUICK if each[0] not in ("smaug-smv matmul", "neural-cluster matmul")]
EVERY = sweep([*QUICK, *SLOW], FEW)


def inputs_of(module: ModuleOp) -> list[NDArray[Any]]:
    """Small integers of every type that the layers of the corpus take."""
    main = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
    random = np.random.default_rng(3)
    arrays: list[NDArray[Any]] = []
    for number, value in enumerate(main.function_type.inputs):
        if main.arg_attrs is not None and "graph.output" in main.arg_attrs.data[number].data:
            continue
        assert isa(value, MemRefType)
        arrays.append(random.integers(-3, 4, value.get_shape()).astype(KINDS[str(value.element_type)]))
    return arrays


def run(module: ModuleOp, context: PenstockContext, interleaving: Order) -> list[NDArray[Any]]:
    return run_module(module, inputs_of(module), context.weights, interleaving=interleaving)


def contradict(module: ModuleOp, context: PenstockContext, seeds: Sequence[int]) -> bool:
    """Whether some interleaving computes something else, or meets a race."""
    expected = run(module, context, "program")
    for interleaving in ("asap", "alap", *seeds):
        try:
            found = run(module, context, interleaving)
        except UserError:
            return True
        if any(not np.array_equal(one, two) for one, two in zip(expected, found, strict=True)):
            return True
    return False


@pytest.mark.parametrize(("name", "extra"), EVERY)
def test_every_token_that_is_left_out_is_missed_unless_others_imply_it(
    name: str, extra: tuple[tuple[str, str], ...]
) -> None:
    module, context = compiled(name, extra)
    target, kernels = machine_kernels(module)
    assert target is not None
    assert not contradict(module, context, (1,))
    tokens = 0
    for kernel in kernels:
        assert check(trace(kernel, target)) == []
        for mutant, verdict in verdicts(kernel, target):
            tokens += 1
            assert verdict.hazards or verdict.is_redundant, mutant
            if verdict.is_redundant:
                assert not contradict(module, context, (5,)), mutant
            else:
                # What the interpreter knows of order is what the check knows, whichever order it takes.
                with pytest.raises(UserError, match="no happens-before between the two"):
                    run(module, context, "asap")
    assert tokens


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extra"), QUICK)
def test_a_hundred_interleavings_contradict_no_redundant_token(name: str, extra: tuple[tuple[str, str], ...]) -> None:
    module, context = compiled(name, extra)
    target, kernels = machine_kernels(module)
    assert target is not None
    for kernel in kernels:
        for mutant, verdict in verdicts(kernel, target):
            if verdict.is_redundant:
                assert not contradict(module, context, range(100)), mutant


@pytest.mark.parametrize(("name", "extra"), QUICK)
def test_no_command_of_a_compiled_kernel_has_a_redundant_token(name: str, extra: tuple[tuple[str, str], ...]) -> None:
    module, _ = compiled(name, extra)
    target, kernels = machine_kernels(module)
    assert target is not None
    commands = [op for kernel in kernels for op in kernel.walk() if isinstance(op, DmaOp | ExecOp)]
    assert any(op.dependencies for op in commands)
    assert [redundant_operands(kernel, target) for kernel in kernels] == [[]] * len(kernels)


@pytest.mark.parametrize(("name", "extra"), QUICK[:4])
def test_every_queue_token_that_is_left_out_is_missed_unless_others_imply_it(
    name: str, extra: tuple[tuple[str, str], ...]
) -> None:
    module, _ = compiled(name, extra)
    target, kernels = machine_kernels(module)
    assert target is not None
    for kernel in kernels:
        whole = assign_queues(trace(kernel, target))
        assert check(whole) == []
        found = list(queue_mutants(whole))
        for program in found[:: max(1, len(found) // 40)]:
            assert check(program) or keeps_order(whole, program)


WAITS = f"""
func.func @kernel(%x: memref<4096xf32>, %y: memref<4096xf32>) attributes {{device = @toy}} {{
  %one = mem.buffer at 0 : {TILE}
  %two = mem.buffer at 64 : {TILE}
  %a = accel.dma %x[0] to %one on "mvin" : memref<4096xf32> to {TILE}
  %b = accel.dma %x[4] to %two on "mvin" : memref<4096xf32> to {TILE}
  accel.wait %a
  %c = accel.dma %one to %y[0] on "mvout" : {TILE} to memref<4096xf32>
  accel.wait %b
  %d = accel.dma %two to %y[4] on "mvout" after (%a) : {TILE} to memref<4096xf32>
  accel.barrier
  func.return
}}
"""


def test_a_wait_that_is_left_out_is_missed() -> None:
    kernel, target = kernel_of(WAITS)
    assert check(trace(kernel, target)) == []
    found: dict[str, bool] = {}
    for mutant, verdict in verdicts(kernel, target):
        assert bool(verdict.hazards) != verdict.is_redundant
        found[f"{mutant.op.name} {len(found)}"] = verdict.is_redundant
    assert list(found.values()) == [False, False, True]
    for number in range(2):
        clone = kernel.clone()
        waits = [op for op in clone.walk() if isinstance(op, WaitOp)]
        waits[number].detach()
        waits[number].erase()
        assert check(trace(clone, target))


def test_a_mutant_is_put_right_again() -> None:
    kernel, _ = kernel_of(WAITS)
    before = str(kernel)
    assert len([str(kernel) for _ in mutants(kernel)]) == 3
    assert str(kernel) == before
