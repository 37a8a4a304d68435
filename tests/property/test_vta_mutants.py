# SPDX-License-Identifier: Apache-2.0
"""A damaged launch is reported by the check, or runs to its end and computes the same in every order of its units."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from numpy.typing import NDArray
from vta_programs import Kernel, convolution, matmul
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.to_vta.disassembler import assemble
from penstock.lowering.to_vta.isa import INSTRUCTION_BYTES, decode, encode
from penstock.lowering.to_vta.launch_check import check_launch
from penstock.runtime.compiler import compile_module
from penstock.runtime.signature import signature_of
from penstock.runtime.vta import Executor, emit

ORDERS = (None, 0, 1, 2)
"""Seeds; without one the units take turns."""
KERNELS = {
    "matmul": lambda: matmul(4, 2, 3),
    "convolution": lambda: convolution((4, 3), 1, 2),
    "several tiles": lambda: matmul(300, 3, 9),
}


@dataclass(frozen=True)
class Launch:
    """One launch as bytes."""

    stream: bytes
    micro_ops: bytes
    dram: bytes
    """Memory off chip in front of the micro-operations."""


@cache
def launch(name: str) -> Launch:
    kernel: Kernel = KERNELS[name]()
    ctx = make_context()
    module = Parser(ctx, kernel.text).parse_module()
    reference = module.clone()
    compile_module(module, ctx, "vta-pynq", "accel")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        emit(path, module, reference, ctx.weights, signature_of(reference), kernel.draw(0))
        manifest = json.loads((path / "manifest.json").read_text())
        (step,) = manifest["steps"]
        assert step["instructions"][0] == 0
        stream, micro_ops, dram = ((path / f"{each}.bin").read_bytes() for each in ("insn", "uop", "dram"))
    assert len(stream) == step["instructions"][1] * INSTRUCTION_BYTES
    return Launch(stream, micro_ops, dram)


def mutant(found: Launch, rng: Random) -> Launch:
    """A bit flipped, or an instruction left out, repeated, moved, or swapped with another one."""
    kind = rng.choice(("bit", "bit", "bit", "micro-op", "drop", "repeat", "swap", "move"))
    if kind == "micro-op":
        return Launch(found.stream, _flipped(found.micro_ops, rng), found.dram)
    if kind == "bit":
        return Launch(_flipped(found.stream, rng), found.micro_ops, found.dram)
    parts = [found.stream[at : at + INSTRUCTION_BYTES] for at in range(0, len(found.stream), INSTRUCTION_BYTES)]
    first, second = rng.randrange(len(parts)), rng.randrange(len(parts))
    if kind == "drop":
        del parts[first]
    elif kind == "repeat":
        parts.insert(second, parts[first])
    elif kind == "swap":
        parts[first], parts[second] = parts[second], parts[first]
    else:
        parts.insert(second, parts.pop(first))
    return Launch(b"".join(parts), found.micro_ops, found.dram)


def _flipped(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@cache
def machine() -> TargetOp:
    return load_machine("vta-pynq")


def fault(found: Launch) -> str | None:
    """What the check says."""
    try:
        check_launch(decode(found.stream), machine(), found.micro_ops, len(found.dram))
    except UserError as error:
        return error.message
    return None


def run(found: Launch, seed: int | None) -> NDArray[np.uint8] | None:
    """Memory off chip after a run; None where it stops at a shift by the amounts in an accumulator, which are data."""
    memory = np.frombuffer(found.dram + found.micro_ops, np.uint8).copy()
    try:
        Executor(memory).run(found.stream, seed=seed)
    except UserError as error:
        if error.message.startswith("shifts by"):
            return None
        raise
    return memory


def judged(name: str, rng: Random) -> bool:
    """Whether the check reports a mutant; if not, it must run."""
    changed = mutant(launch(name), rng)
    if fault(changed) is not None:
        return True
    results = [run(changed, seed) for seed in ORDERS]
    for result in results[1:]:
        assert (result is None) == (results[0] is None)
        if result is not None:
            np.testing.assert_array_equal(result, results[0])
    return False


@pytest.mark.parametrize("name", KERNELS)
def test_the_launches_that_are_damaged_are_clean(name: str) -> None:
    assert fault(launch(name)) is None
    assert run(launch(name), 3) is not None


def test_a_damaged_launch_is_reported_or_runs() -> None:
    rng = Random(0)
    reported = [judged("matmul", rng) for _ in range(60)]
    assert 10 < sum(reported) < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_many_damaged_launches_are_reported_or_run(name: str) -> None:
    rng = Random(1)
    reported = [judged(name, rng) for _ in range(1000)]
    assert 100 < sum(reported) < 1000


WAIT = "load uop sram 0 dram 0 rows 0 of 0 stride 0 pop_next\n"
"""Of compute, for the store."""
COMPLETE = f"""
load uop sram 0 dram 64 rows 1 of 1 stride 1
gemm reset uops 0..1 loops 1x1 dst 0,0 src 0,0 wgt 0,0
alu max imm 0 uops 0..1 loops 1x1 dst 0,0 src 0,0 push_next
store out sram 0 dram 0 rows 1 of 1 stride 1 pop_prev push_prev
{WAIT}finish
"""


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        (f"stride 1 pop_prev push_prev\n{WAIT}", "stride 1 pop_prev\n", "store"),
        (WAIT, f"finish\n{WAIT}", "FINISH is not the last instruction"),
        ("finish\n", "", "the stream ends without FINISH"),
        ("finish\n", "finish\nfinish\n", "FINISH is not the last instruction"),
        ("alu max imm 0", "alu shr imm -1", "shifts by less than 0 or more than 31 bits"),
        ("store out sram 0", "store out sram 1", 'reads entry 1 of "acc", which nothing has written'),
        ("imm 0 uops 0..1 loops 1x1", "imm 0 uops 0..1 loops 1x0", "stores entry 0, which no GEMM or ALU has computed"),
        ("sram 0 dram 64", "sram 0 dram 65", "loads micro-operations from bytes 260 to 264, and they are from"),
        ("sram 0 dram 0 rows 1", "sram 0 dram 16 rows 1", "stores up to byte 272, and micro-operations begin at 256"),
        ("loops 1x1 dst 0,0 src 0,0 wgt", "loops 2x2 dst 2047,1 src 0,0 wgt", 'reaches entry 2048 of "acc"'),
    ],
)  # fmt: skip
def test_what_is_no_launch_is_told(line: str, instead: str, message: str) -> None:
    assert COMPLETE.count(line) == 1
    check_launch(assemble(COMPLETE), machine(), bytes(4), 256)
    with pytest.raises(UserError) as error:
        check_launch(decode(encode(assemble(COMPLETE.replace(line, instead)))), machine(), bytes(4), 256)
    assert message in error.value.message
