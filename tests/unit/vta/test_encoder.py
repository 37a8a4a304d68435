# SPDX-License-Identifier: Apache-2.0
"""What commands become: their tokens, their loops, and the micro-operations that they need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vta_programs import Kernel, convolution, matmul, residual_add
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.accel import PopOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.lowering.to_vta.disassembler import text_of
from penstock.lowering.to_vta.encoder import MicroOpCache, MicroOpStore, encode_launch
from penstock.lowering.to_vta.isa import (
    FLAGS,
    Gemm,
    Instruction,
    Load,
    Loops,
    MemoryType,
    encode,
    micro_op_indices,
    pops_of,
    pushes_of,
)
from penstock.lowering.to_vta.module import encode_module
from penstock.lowering.to_vta.stream import program_of
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels, machine_of
from penstock.runtime.compiler import compile_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

CTX = make_context()


def machine() -> TargetOp:
    module = ModuleOp([])
    attach_machine(module, "vta-pynq")
    target = machine_of(module)
    assert target is not None
    return target


TARGET = machine()
LOADS, LOADED = ("load", "compute"), ("compute", "load")
STORED, STORES = ("store", "compute"), ("compute", "store")


def carried(*commands: Command, barriers: tuple[int, ...] = ()) -> list[str]:
    program = Program(MachineModel.of(TARGET), list(commands), barriers)
    instructions = encode_launch(program, TARGET, [0], MicroOpStore(0))
    return [text_of(each).replace(" sram 0 dram 0 rows 0 of 0 stride 0", "") for each in instructions]


def carrier(unit: str, pops: tuple[tuple[str, str], ...] = (), pushes: tuple[tuple[str, str], ...] = ()) -> Command:
    return Command(unit, Kind.CARRIER, pops=pops, pushes=pushes)


# tokens


def test_a_second_token_on_one_side_is_carried_by_an_instruction_of_its_own() -> None:
    assert carried(
        carrier("load", pushes=(LOADS, LOADS)),
        carrier("store", pushes=(STORED,)),
        carrier("compute", pops=(LOADS, STORED, LOADS), pushes=(LOADED,)),
        carrier("load", pops=(LOADED,)),
    ) == [
        "load inp push_next",
        "load inp push_next",
        "store out push_prev",
        "load uop pop_prev",
        "load uop pop_prev pop_next push_prev",
        "load inp pop_next push_next",
        "store out push_prev",
        "load uop pop_prev pop_next",
        "finish",
    ]


def test_finish_comes_after_every_unit_that_did_anything() -> None:
    assert carried(carrier("load"), carrier("compute")) == [
        "load inp push_next",
        "load uop",
        "load uop pop_prev",
        "finish",
    ]
    assert carried(carrier("compute")) == ["load uop", "finish"]


def test_a_barrier_lets_every_unit_wait_for_all_others() -> None:
    assert carried(carrier("load"), carrier("store"), barriers=(1,)) == [
        "load inp push_next",
        "store out push_prev",
        "load uop pop_prev pop_next push_prev push_next",
        "load inp pop_next push_next",
        "store out pop_prev",
        "store out push_prev",
        "load uop pop_prev pop_next",
        "finish",
    ]


def test_tokens_that_are_not_there_or_left_over_are_refused() -> None:
    with pytest.raises(UserError, match="pops a token from load before there is one"):
        carried(carrier("compute", pops=(LOADS,)))
    with pytest.raises(UserError, match="tokens are left in queues at the end: 1 from load to compute"):
        carried(carrier("load", pushes=(LOADS,)))
    with pytest.raises(UserError, match="tokens are left in queues at a barrier: 1 from load to compute"):
        carried(carrier("load", pushes=(LOADS,)), carrier("compute", pops=(LOADS,)), barriers=(1,))


def launches(kernel: Kernel) -> list[tuple[list[Instruction], bytes, int]]:
    module = Parser(CTX, kernel.text).parse_module()
    # The one machine that has every instruction.
    compile_module(module, CTX, "vta-fsim", "accel")
    encoded = encode_module(module)
    store = encoded.micro_ops
    return [(list(step.instructions), store.data, store.base) for step in encoded.steps if step.instructions]


KERNELS = {
    "convolution": convolution((8, 6), 2, 3),
    "strided": convolution((12, 12), 4, 4, stride=2),
    "one row of channels": convolution((6, 6), 1, 1),
    "matmul": matmul(24, 4, 8),
    "residual add": residual_add((1, 16, 16, 8)),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_a_stream_has_no_hazard_as_its_own_bits_tell(kernel: Kernel) -> None:
    for instructions, micro_ops, base in launches(kernel):
        assert check(program_of(instructions, TARGET, micro_ops, base)) == []


@pytest.mark.parametrize("name", ["convolution", "matmul", "residual add"])
def test_no_token_of_a_stream_can_be_left_out(name: str) -> None:
    """Without the k-th push and pop of a queue there is a race, but for the tokens of FINISH and of the first load."""
    ((instructions, micro_ops, base),) = launches(KERNELS[name])
    program = program_of(instructions, TARGET, micro_ops, base)
    tokens = 0
    for queue in (LOADS, LOADED, STORED, STORES):
        pushes = [number for number, each in enumerate(instructions) if queue in pushes_of(each)]
        pops = [number for number, each in enumerate(instructions) if queue in pops_of(each)]
        assert len(pushes) == len(pops)
        for push, pop in zip(pushes, pops, strict=True):
            if instructions[pop].is_empty and pop in (1, len(instructions) - 2):
                continue
            commands = list(program.commands)
            first = commands[push]
            commands[push] = replace(first, pushes=tuple(each for each in first.pushes if each != queue))
            second = commands[pop]
            commands[pop] = replace(second, pops=tuple(each for each in second.pops if each != queue))
            assert check(replace(program, commands=commands)), f"{queue} {push} {pop}"
            tokens += 1
    assert tokens > 0


def test_a_kernel_in_queue_form_is_taken_as_it_is() -> None:
    module = Parser(CTX, KERNELS["strided"].text).parse_module()
    compile_module(module, CTX, "vta-pynq", "accel")
    queued = module.clone()
    run_passes(CTX, queued, read_pipeline("accel-assign-queues"))
    assert any(isinstance(op, PopOp) for op in queued.walk())
    for one, other in zip(encode_module(module).steps, encode_module(queued).steps, strict=True):
        assert one.instructions is not None
        assert other.instructions is not None
        work = [[each for each in launch if not each.is_empty] for launch in (one.instructions, other.instructions)]
        without = dict.fromkeys(FLAGS, False)
        assert [replace(each, **without) for each in work[0]] == [replace(each, **without) for each in work[1]]


# loops and micro-operations


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_no_accumulator_is_written_twice_in_a_row_by_sums(kernel: Kernel) -> None:
    seen = 0
    for instructions, micro_ops, base in launches(kernel):
        on_chip = np.zeros(8192, "<u4")
        for each in instructions:
            if isinstance(each, Load) and each.memory is MemoryType.UOP and not each.is_empty:
                first = each.dram_base - base // 4
                words = np.frombuffer(micro_ops, "<u4")[first : first + each.x_size]
                on_chip[each.sram_base : each.sram_base + each.x_size] = words
            if isinstance(each, Loops):
                listed = micro_op_indices(on_chip[each.uop_begin : each.uop_end].tobytes())[0]
                outer, inner = np.arange(each.iter_out)[:, None, None], np.arange(each.iter_in)[None, :, None]
                written = (listed + outer * each.dst_factor_out + inner * each.dst_factor_in).ravel()
                assert not (np.diff(written) == 0).any(), text_of(each)
                seen += written.size
    assert seen > 0


def test_lists_are_stored_once_and_loaded_again_only_when_they_had_to_give_way() -> None:
    store = MicroOpStore(1024)
    cache = MicroOpCache(store, depth=10)
    lists = [np.arange(size, dtype=np.uint32) + 100 * size for size in (4, 5, 3)]
    places = [cache.place(lists[number]) for number in (0, 1, 0, 2, 0, 1)]
    assert [begin for begin, _ in places] == [0, 4, 0, 4, 0, 4]
    # The third list took the place of the second, which was not used for longer than the first.
    assert [load is not None for _, load in places] == [True, True, False, True, False, True]
    loads = [(load.sram_base, load.dram_base, load.x_size) for _, load in places if load is not None]
    assert loads == [(0, 256, 4), (4, 260, 5), (4, 265, 3), (4, 260, 5)]
    assert store.data == np.concatenate(lists).astype("<u4").tobytes()


def test_lists_that_have_room_together_are_loaded_at_once() -> None:
    store = MicroOpStore(0)
    lists = [np.arange(size, dtype=np.uint32) + 100 * size for size in (4, 3, 2)]
    first = MicroOpCache(store, depth=10)
    loads = first.load_all([lists[0], lists[1], lists[0]])
    assert [(load.sram_base, load.dram_base, load.x_size) for load in loads] == [(0, 0, 7)]
    assert first.place(lists[1]) == (4, None)
    # What does not adjoin off chip needs a load of its own.
    second = MicroOpCache(store, depth=10)
    store.address(lists[2])
    loads = second.load_all([lists[2], lists[0]])
    assert [(load.sram_base, load.dram_base, load.x_size) for load in loads] == [(0, 0, 4), (4, 7, 2)]
    assert MicroOpCache(store, depth=8).load_all(lists) == []


def test_each_launch_loads_its_own_micro_operations() -> None:
    for instructions, _, _ in launches(KERNELS["convolution"]):
        loaded = np.zeros(8192, np.bool_)
        for each in instructions:
            if isinstance(each, Load) and each.memory is MemoryType.UOP:
                loaded[each.sram_base : each.sram_base + each.x_size] = True
            if isinstance(each, Loops):
                assert loaded[each.uop_begin : each.uop_end].all()


HEADER = """
func.func private @kernel() attributes {device = @vta_pynq} {
"""


def encoded_kernel(body: str) -> list[Instruction]:
    module = Parser(CTX, f"{HEADER}{body}\naccel.barrier\nfunc.return\n}}").parse_module()
    attach_machine(module, "vta-pynq")
    target, (kernel,) = machine_kernels(module)
    assert target is not None
    return encode_launch(trace(kernel, target), target, [0, 0], MicroOpStore(0))


def test_two_dims_are_loops_and_the_rest_is_listed_with_the_accumulators_innermost() -> None:
    instructions = encoded_kernel("""
      %i = mem.buffer at 0 : memref<8x4x16xi8, "inp">
      %w = mem.buffer at 256 : memref<3x4x16x16xi8, "wgt">
      %a = mem.buffer at 128 : memref<8x3x16xi32, "acc">
      %t = accel.exec @gemm extents [8, 3, 16, 4, 16] maps [
        affine_map<(m, nb, n, kb, k) -> (m, kb, k)>, affine_map<(m, nb, n, kb, k) -> (nb, kb, n, k)>,
        affine_map<(m, nb, n, kb, k) -> (m, nb, n)>] (%i, %w, %a)
        : memref<8x4x16xi8, "inp">, memref<3x4x16x16xi8, "wgt">, memref<8x3x16xi32, "acc">""")
    (gemm,) = [each for each in instructions if isinstance(each, Gemm)]
    assert text_of(gemm) == "gemm uops 0..3 loops 8x4 dst 3,0 src 4,1 wgt 0,1"
    assert text_of(instructions[0]) == "load uop sram 0 dram 0 rows 1 of 3 stride 3"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            """
      %a = mem.buffer at 0 : memref<16x2xi32, "acc">
      %t = accel.exec @alu_max_imm imm [0 : i32] extents [16] maps [affine_map<(n) -> (n, 0)>] (%a)
        : memref<16x2xi32, "acc">
      """,
            "@alu_max_imm: no dim of [16] is a multiple of 16 and moves as n does",
        ),
        (
            """
      %a = mem.buffer at 32 : memref<16xi32, "acc">
      %t = accel.exec @alu_max_imm imm [0 : i32] extents [16] maps [affine_map<(n) -> (n)>] (%a)
        : memref<16xi32, "acc">
      """,
            '@alu_max_imm: begins or steps by 32 bytes of "acc", which is no multiple of an entry of 64',
        ),
    ],
)
def test_what_is_no_instruction_is_refused_with_its_place(body: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        encoded_kernel(body)
    assert error.value.message == message
    assert error.value.loc is not None


def test_encoding_is_the_same_every_time() -> None:
    first, second = (launches(KERNELS["convolution"]) for _ in range(2))
    assert [encode(each) for each, *_ in first] == [encode(each) for each, *_ in second]
    assert [data for _, data, _ in first] == [data for _, data, _ in second]
