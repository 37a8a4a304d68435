# SPDX-License-Identifier: Apache-2.0
"""
Problems of compiled programs: networks tiled for a machine, promoted into its scopes, multi-buffered, not yet planned.

`kernels` are the problems that mem-plan is given: each scope of each kernel. They are small, since the buffers of a
loop are few, however often it runs. `programs` follow the execution of a whole program, as a pipelined schedule would
have it: see `trace`. Machines with a quarter of their memory give other tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64

from benchmarks.instances.instance import Instance
from benchmarks.instances.trace import trace
from benchmarks.measure import say
from benchmarks.networks import network
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import ScopeOp, find_target
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.memory_problems import function_problems
from penstock.passes.loop.multi_buffer import MultiBufferPass
from penstock.passes.planning.problem import Problem
from penstock.runtime.compiler import import_program
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

PROGRAMS = (
    ("bert_layer", "rapid-core-like"), ("squeezenet", "neural-accelerator"), ("mobilenet_v2", "gemmini-fp32"),
    ("resnet50", "gemmini-fp32"), ("inception_v1", "gemmini-fp32"), ("inception_v2", "neural-accelerator"),
    ("densenet121", "gemmini-fp32"), ("bert_layer", "gemmini-fp32"), ("lstm", "gemmini-fp32"),
    ("int8_cnn", "gemmini"), ("bert_layer", "h100-sm"), ("resnet50", "smaug-smv"), ("mobilenet_v1", "neural-cluster"),
    ("bvlc_alexnet", "neural-cluster"), ("vgg19", "rapid-core-like"), ("zfnet512", "gemmini-fp32"),
)  # fmt: skip
"""Networks, in their small sizes, and the machines that they are compiled for."""
PARTS = (1, 4)
"""The memory of a machine is divided by these."""
DEPTHS = (1, 2, 3)


@cache
def _compiled(name: str, machine: str, part: int) -> ModuleOp | None:
    """A program with everything in the scopes and nothing placed; None if it does not fit the smaller memory."""
    say(f"instances: compiling {name} for 1/{part} of {machine}")
    program = import_program(network(name, small=True)[0], {})
    attach_machine(program.module, machine)
    target = find_target(program.module)
    assert target is not None
    for scope in target.walk():
        if isinstance(scope, ScopeOp):
            size = scope.size_bytes // part // scope.granule_bytes * scope.granule_bytes
            scope.properties["size"] = IntegerAttr(size, i64)
    specs = pipeline("loop", machine)
    try:
        passes = read_pipeline(",".join(specs[: specs.index("mem-plan")]))
        run_passes(program.ctx, program.module, passes)
    except UserError as error:
        say(f"instances: left out: {error.message}")
        return None
    return program.module


def _programs(quick: bool) -> Iterator[tuple[str, ModuleOp]]:
    for name, machine in PROGRAMS[:2] if quick else PROGRAMS:
        for part in PARTS[:1] if quick else PARTS:
            if (module := _compiled(name, machine, part)) is not None:
                yield f"{name}-{machine}-{part}", module


def _shape(problem: Problem) -> object:
    """What two problems have in common if they are the same but for names."""
    return tuple((buffer.intervals, buffer.size, buffer.alignment) for buffer in problem.buffers)


def kernels(quick: bool) -> Iterator[Instance]:
    """Each scope of each kernel with rings of each depth; of equal problems one, and none of a single buffer."""
    seen: set[object] = set()
    for program, module in _programs(quick):
        for depth in DEPTHS:
            buffered = module.clone()
            MultiBufferPass(depth).apply(Context(), buffered)
            target, functions = machine_kernels(buffered)
            for function in functions:
                assert target is not None
                for each in function_problems(function, target):
                    if len(each.problem.buffers) > 1 and _shape(each.problem) not in seen:
                        seen.add(_shape(each.problem))
                        name = f"{program}-{each.function}-{each.scope}-{depth}"
                        yield Instance("kernels", name, each.problem)


def programs(quick: bool) -> Iterator[Instance]:
    """Whole programs, each scope, for each number of iterations that transfers are ahead."""
    seen: set[object] = set()
    for program, module in _programs(quick):
        target = find_target(module)
        assert target is not None
        for scope in target.scopes():
            for ahead in (0, 1, 2):
                problem = trace(module, scope, ahead)
                if len(problem.buffers) > 2 and _shape(problem) not in seen:
                    seen.add(_shape(problem))
                    yield Instance("programs", f"{program}-{scope}-{ahead}", problem)
