# SPDX-License-Identifier: Apache-2.0
"""The machine dialect: what passes read from a target, and that its text is a fixed point."""

from __future__ import annotations

from fractions import Fraction
from io import StringIO

import pytest
from programs import verified
from xdsl.dialects.builtin import ModuleOp, f32, i8, i32
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import MachinePart, OperandSpec, TargetOp, find_target, layout_of
from penstock.lowering.from_machine_toml import load_machine


def text_of(module: ModuleOp, *, generic: bool = False) -> str:
    stream = StringIO()
    Printer(stream=stream, print_generic_format=generic).print_op(module)
    return stream.getvalue()


def small(*parts: str) -> TargetOp:
    target = find_target(verified(f"machine.target @m frequency 1 {{ {' '.join(parts)} }}"))
    assert target is not None
    return target


@pytest.fixture(scope="module")
def gemmini() -> TargetOp:
    return load_machine("gemmini-fp32")


@pytest.fixture(scope="module")
def vta() -> TargetOp:
    return load_machine("vta-pynq")


def test_the_target_is_found_among_other_operations() -> None:
    module = verified("func.func private @f()\nmachine.target @m frequency 1 { machine.unit @u }")
    target = find_target(module)
    assert target is not None
    assert target.sym_name.data == "m"
    assert find_target(verified("func.func private @f()")) is None


def test_a_target_knows_its_name_and_frequency(gemmini: TargetOp) -> None:
    assert gemmini.sym_name.data == "gemmini_fp32"
    assert gemmini.machine_name == "gemmini-fp32"
    assert gemmini.frequency_mhz == 1000
    assert small("machine.unit @u").machine_name == "m"


def test_parts_are_listed_by_name_in_their_order(vta: TargetOp) -> None:
    assert list(vta.scopes()) == ["inp", "wgt", "acc", "uop"]
    assert list(vta.buses()) == ["axi_rd", "axi_wr"]
    assert list(vta.units()) == ["load", "compute", "store"]
    assert list(vta.dmas()) == ["load_inp", "load_wgt", "load_acc", "load_uop", "store_out"]
    assert list(vta.intrinsics())[:3] == ["gemm", "gemm_reset", "alu_min"]
    assert [(queue.source, queue.destination) for queue in vta.queues()] == [
        ("load", "compute"),
        ("compute", "load"),
        ("compute", "store"),
        ("store", "compute"),
    ]


def test_a_scope_gives_its_numbers(gemmini: TargetOp) -> None:
    spad = gemmini.scope("spad")
    assert (spad.size_bytes, spad.granule_bytes, spad.bank_count) == (262144, 16, 4)
    assert spad.parent_name == "dram"
    bare = small("machine.scope @s size 8 granule 4 dtypes [f32]").scope("s")
    assert (bare.bank_count, bare.parent_name) == (1, "dram")


def test_an_unknown_scope_is_the_users_fault(gemmini: TargetOp) -> None:
    with pytest.raises(UserError, match='machine "gemmini-fp32" has no scope "spat"') as caught:
        gemmini.scope("spat")
    assert caught.value.notes == ('did you mean "spad"?',)


def test_the_engine_between_two_scopes_is_found(gemmini: TargetOp, vta: TargetOp) -> None:
    def between(target: TargetOp, source: str, destination: str) -> str | None:
        dma = target.dma_between(source, destination)
        return None if dma is None else dma.sym_name.data

    assert between(gemmini, "dram", "spad") == "mvin"
    assert between(gemmini, "dram", "acc") == "mvin"
    assert between(gemmini, "acc", "dram") == "mvout"
    assert between(gemmini, "spad", "acc") is None
    assert between(vta, "dram", "wgt") == "load_wgt"
    assert between(vta, "wgt", "dram") is None


def test_an_engine_gives_its_numbers_and_limits(vta: TargetOp) -> None:
    load = vta.dmas()["load_inp"]
    assert (load.unit_name, load.bus_name) == ("load", "axi_rd")
    assert (load.dim_count, load.max_counts, load.stride_limit) == (2, (65535, 65535), 65535)
    assert (load.pad_limit, load.alignment) == (15, 16)
    assert (load.latency_cycles, load.row_overhead_cycles, load.outstanding_limit) == (8, 1, 1)
    assert load.converts is None
    assert vta.dmas()["store_out"].converts == (i32, i8, "truncate")


def test_an_engine_without_limits_has_none() -> None:
    dma = small(
        "machine.scope @s size 8 granule 4 dtypes [f32] machine.unit @u",
        "machine.dma @d unit @u from [@dram] to [@s] dims 3 latency 0 row_overhead 0 outstanding 1",
    ).dmas()["d"]
    assert (dma.bus_name, dma.max_counts, dma.stride_limit, dma.pad_limit) == (None, (), None, 0)


def test_a_bus_is_an_exact_fraction() -> None:
    assert load_machine("rapid-core-like").buses()["ext"].bytes_per_cycle == (64, 3)


def test_a_queue_gives_its_numbers(gemmini: TargetOp, vta: TargetOp) -> None:
    assert vta.queues()[0].capacity_tokens == 255
    assert vta.queues()[0].initial_tokens == 0
    assert not vta.queues()[0].blocks
    assert gemmini.queues()[0].blocks


def test_an_intrinsic_of_a_unit_gives_its_shape_and_its_cost(gemmini: TargetOp) -> None:
    gemm = gemmini.intrinsics()["gemm"]
    assert (gemm.unit_name, gemm.dma_name) == ("execute", None)
    assert gemm.dims == ("m", "n", "k")
    assert gemm.shape == ((1, 4), (1, 4), (1, 4))
    assert (gemm.initiation_interval, gemm.depth) == (4, 12)
    assert gemm.max_iterations == (65535,) * 7
    assert gemm.operand_specs() == (
        OperandSpec("a", "spad", f32, "in", "row"),
        OperandSpec("b", "spad", f32, "in", "row"),
        OperandSpec("acc", "acc", f32, "inout", "row"),
    )


def test_an_intrinsic_of_an_engine_has_open_dims_and_no_cost_of_its_own(gemmini: TargetOp) -> None:
    relu = gemmini.intrinsics()["mvout_relu"]
    assert (relu.unit_name, relu.dma_name) == (None, "mvout")
    assert relu.shape == (None, None)
    assert (relu.initiation_interval, relu.depth, relu.max_iterations) == (0, 0, ())
    assert relu.operand_specs() == (
        OperandSpec("src", "acc", f32, "in", "row"),
        OperandSpec("dst", "dram", f32, "out", "row"),
    )


def test_the_role_of_the_written_operand_follows_from_the_behaviour(gemmini: TargetOp, vta: TargetOp) -> None:
    assert gemmini.intrinsics()["zero_acc"].operand_specs()[-1].role == "out"
    assert gemmini.intrinsics()["mvin_add"].operand_specs()[-1].role == "inout"
    assert vta.intrinsics()["alu_max"].operand_specs()[-1].role == "inout"


def test_an_immediate_is_an_operand_without_a_scope(vta: TargetOp) -> None:
    shift = vta.intrinsics()["alu_shr_imm"]
    assert shift.operand_specs() == (
        OperandSpec("imm", "", i32, "imm", "dense"),
        OperandSpec("acc", "acc", i32, "inout", "dense"),
    )


def test_an_exact_extent_is_a_range_of_one(vta: TargetOp) -> None:
    assert vta.intrinsics()["gemm"].shape == ((1, 1), (16, 16), (16, 16))


@pytest.mark.parametrize(
    ("name", "peak"), [("gemmini-fp32", 16), ("vta-pynq", 256), ("rapid-core-like", 1024), ("host", 0)]
)
def test_the_peak_is_that_of_the_best_multiply_accumulate(name: str, peak: int) -> None:
    assert load_machine(name).peak_macs_per_cycle() == Fraction(peak)


def test_only_what_multiplies_and_adds_counts_as_multiply_accumulate(vta: TargetOp) -> None:
    macs = {name: op.macs_per_issue() for name, op in vta.intrinsics().items()}
    assert macs.pop("gemm") == 256
    assert set(macs.values()) == {0}


def test_rows_apart_are_a_strided_layout() -> None:
    assert str(layout_of("row", 2)) == "strided<[?, 1]>"
    assert str(layout_of("granule", 3)) == "strided<[?, ?, 1]>"
    assert layout_of("row", 1) == layout_of("dense", 1) == layout_of("dense", 3)


def test_a_scope_without_a_size_does_not_parse() -> None:
    with pytest.raises(ParseError, match="size"):
        small("machine.scope @s granule 4 dtypes [f32]")


def test_a_reference_into_another_table_does_not_verify() -> None:
    with pytest.raises(VerifyException):
        small('machine.unit @u machine.unit @v machine.queue from @u::@v to @v capacity 1 on_full "block"')


def test_a_list_of_sizes_that_differ_from_the_names_does_not_verify() -> None:
    # The custom form cannot say this; the generic one can.
    module = ModuleOp([load_machine("gemmini-fp32")])
    generic = text_of(module, generic=True).replace('strides = ["row", "row", "row"]', 'strides = ["row"]', 1)
    with pytest.raises(VerifyException, match="operands has 3 names, but the behaviour 3 operands"):
        verified(generic)


def test_every_part_says_where_each_of_its_numbers_comes_from(gemmini: TargetOp) -> None:
    mvin = gemmini.dmas()["mvin"]
    assert mvin.origin is not None
    origin = {key: str(value) for key, value in mvin.origin.data.items()}
    assert origin["all"] == '"cfg"'
    assert origin["latency"] == '"assumed"'
    assert gemmini.sources is not None
    assert "FP32DefaultConfig" in str(gemmini.sources.data["cfg"])
    assert all(part.origin is not None for part in gemmini.parts(MachinePart) if part.KIND != "unit")
