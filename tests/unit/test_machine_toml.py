# SPDX-License-Identifier: Apache-2.0
"""Machine files: what a tensor expression becomes, where numbers come from, and where things stand in the text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import FileLineColLoc, StringAttr, bf16, f16, f32, i8, i32
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute

from penstock.dialects.diagnostics import ExpressionFault, UserError, render_location
from penstock.dialects.machine import MachinePart, TargetOp, numbers_of
from penstock.lowering.from_machine_toml import MachineFileError, load_machine, read_machine, validate
from penstock.lowering.machine_names import machine_text, shipped_machines
from penstock.lowering.tensor_expression import (
    Behaviour,
    OperandDecl,
    build_behaviour,
    scalar_type,
)
from penstock.lowering.toml_positions import Path as KeyPath
from penstock.lowering.toml_positions import locate
from penstock.passes.analysis.reductions import combiners

A = OperandDecl("a", "spad", f32, "row")
B = OperandDecl("b", "spad", f32, "row")
C = OperandDecl("c", "acc", f32, "row")
SMALL = '[machine]\nname = "small-1"\nfreq_mhz = {0}\n\n[[unit]]\nname = "cpu"\n'


def floats(*names: str, dtype: Attribute = f32) -> list[OperandDecl]:
    return [OperandDecl(name, "spad", dtype, "dense") for name in names]


def generic_of(behaviour: Behaviour) -> GenericOp:
    behaviour.region.block.first_op.verify()  # pyright: ignore[reportOptionalMemberAccess]
    op = behaviour.region.block.first_op
    assert isinstance(op, GenericOp)
    return op


def body_of(text: str, *operands: OperandDecl) -> list[str]:
    """The body of the generic for `text`, an operation a line."""
    lines = str(generic_of(build_behaviour(text, operands))).splitlines()
    return [line.strip() for line in lines[2:-1]]


def test_a_contraction_multiplies_and_then_adds_to_the_accumulator() -> None:
    assert body_of("c[m,n] += a[m,k] * b[k,n]", A, B, C) == [
        "%0 = arith.mulf %in, %in_1 : f32",
        "%1 = arith.addf %out, %0 : f32",
        "linalg.yield %1 : f32",
    ]


def test_dims_of_the_left_side_are_parallel_and_come_first() -> None:
    behaviour = build_behaviour("c[m,n] += a[k,m] * b[n,k]", [A, B, C])
    generic = generic_of(behaviour)
    assert behaviour.dims == ("m", "n", "k")
    assert [kind.data.value for kind in generic.iterator_types] == ["parallel", "parallel", "reduction"]
    assert [str(each.data) for each in generic.indexing_maps] == [
        "(d0, d1, d2) -> (d2, d0)",
        "(d0, d1, d2) -> (d1, d2)",
        "(d0, d1, d2) -> (d0, d1)",
    ]


def test_operands_get_their_scope_their_strides_and_a_dim_for_each_index() -> None:
    dram = OperandDecl("a", "dram", f32, "dense")
    args = build_behaviour("c[i,j] += a[i]", [dram, C]).region.block.args
    assert [str(arg.type) for arg in args] == ["memref<?xf32>", 'memref<?x?xf32, strided<[?, 1]>, "acc">']


def test_an_assignment_does_not_read_what_it_writes() -> None:
    generic = generic_of(build_behaviour("c[m,n] = max(a[m,n], 0)", [A, C]))
    assert not generic.body.block.args[-1].uses
    assert [op.name for op in generic.body.block.ops] == ["arith.constant", "arith.maximumf", "linalg.yield"]


def test_a_reduction_combines_what_the_left_side_holds() -> None:
    behaviour = build_behaviour("c[m] = max(c[m], a[m,n])", [A, C])
    generic = generic_of(behaviour)
    assert [kind.data.value for kind in generic.iterator_types] == ["parallel", "reduction"]
    assert [op.name for op in generic.body.block.ops] == ["arith.maximumf", "linalg.yield"]
    assert combiners(generic) == {1: "arith.maximumf"}


@pytest.mark.parametrize(
    "text", ["c[m] = a[m,n]", "c[m] = a[m,n] - c[m]", "c[m] = max(a[m,n], 0)", "c[m] += c[m] * a[m,n]"]
)
def test_what_combines_nothing_reduces_nothing(text: str) -> None:
    with pytest.raises(ExpressionFault, match=r'"n" is reduced.* nothing combines'):
        build_behaviour(text, [A, C])


def test_a_fill_has_no_inputs() -> None:
    generic = generic_of(build_behaviour("c[m,n] = 0", [C]))
    assert not generic.inputs
    assert body_of("c[m,n] = 0", C)[0] == "%0 = arith.constant 0.000000e+00 : f32"


def test_an_operand_that_is_read_and_written_in_place_is_no_input() -> None:
    x = OperandDecl("x", "acc", i32, "dense")
    generic = generic_of(build_behaviour("x[n] = min(x[n], imm)", [x]))
    assert body_of("x[n] = min(x[n], imm)", x)[0] == "%0 = arith.minsi %out, %in : i32"
    assert [str(value.type) for value in generic.inputs] == ["i32"]


def test_an_immediate_stands_before_the_written_operand() -> None:
    behaviour = build_behaviour("y[n] = x[n] + imm", floats("x", "y", dtype=f16))
    assert behaviour.operands == ("x", "imm", "y")
    assert str(behaviour.region.block.args[1].type) == "f16"
    assert str(generic_of(behaviour).indexing_maps.data[1].data) == "(d0) -> ()"


def test_integers_are_widened_by_casts_and_computed_signed() -> None:
    inp, wgt = OperandDecl("inp", "inp", i8, "dense"), OperandDecl("wgt", "wgt", i8, "dense")
    acc = OperandDecl("acc", "acc", i32, "dense")
    text = "acc[m,n] += cast(i32, inp[m,k]) * cast(i32, wgt[n,k])"
    assert body_of(text, inp, wgt, acc) == [
        "%0 = arith.extsi %in : i8 to i32",
        "%1 = arith.extsi %in_1 : i8 to i32",
        "%2 = arith.muli %0, %1 : i32",
        "%3 = arith.addi %out, %2 : i32",
        "linalg.yield %3 : i32",
    ]


@pytest.mark.parametrize(
    ("source", "target", "op"),
    [
        ("i8", "i32", "arith.extsi"),
        ("i32", "i8", "arith.trunci"),
        ("f16", "f32", "arith.extf"),
        ("f32", "bf16", "arith.truncf"),
        ("i8", "f32", "arith.sitofp"),
        ("f32", "i8", "arith.fptosi"),
    ],
)
def test_a_cast_is_the_conversion_between_its_types(source: str, target: str, op: str) -> None:
    source_type, target_type = scalar_type(source), scalar_type(target)
    assert source_type is not None
    assert target_type is not None
    x = OperandDecl("x", "s", source_type, "dense")
    y = OperandDecl("y", "s", target_type, "dense")
    generic = generic_of(build_behaviour(f"y[n] = cast({target}, x[n])", [x, y]))
    assert [each.name for each in generic.body.block.ops] == [op, "linalg.yield"]


def test_a_cast_between_floats_of_one_width_goes_through_the_type_that_holds_both() -> None:
    x, y = OperandDecl("x", "s", bf16, "dense"), OperandDecl("y", "s", f16, "dense")
    assert body_of("y[n] = cast(f16, x[n])", x, y)[:2] == [
        "%0 = arith.extf %in : bf16 to f32",
        "%1 = arith.truncf %0 : f32 to f16",
    ]


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        ("y[n] = exp(x[n])", ["math.exp"]),
        ("y[n] = reciprocal(x[n])", ["arith.constant", "arith.divf"]),
        ("y[n] = -x[n]", ["arith.negf"]),
        ("y[n] = x[n] - 2.5", ["arith.constant", "arith.subf"]),
        ("y[n] = min(x[n], -6)", ["arith.constant", "arith.minimumf"]),
        ("y[n] = x[n]", []),
        ("y[n] = x[n] + x[n] * x[n]", ["arith.mulf", "arith.addf"]),
        ("y[n] = (x[n] + x[n]) * x[n]", ["arith.addf", "arith.mulf"]),
        ("y[n] = x[n] - x[n] - x[n]", ["arith.subf", "arith.subf"]),
    ],
)
def test_functions_and_operators_become_scalar_operations(text: str, ops: list[str]) -> None:
    generic = generic_of(build_behaviour(text, floats("x", "y")))
    assert [op.name for op in generic.body.block.ops] == [*ops, "linalg.yield"]


def test_subtraction_associates_to_the_left() -> None:
    lines = body_of("y[n] = x[n] - imm - 1", *floats("x", "y"))
    assert lines[0] == "%0 = arith.subf %in, %in_1 : f32"
    assert lines[2] == "%2 = arith.subf %0, %1 : f32"


def test_indices_are_affine_in_the_dims() -> None:
    behaviour = build_behaviour("y[i] += x[2*i + k - 1] * w[k]", floats("x", "w", "y"))
    assert str(generic_of(behaviour).indexing_maps.data[0].data) == "(d0, d1) -> ((((d0 * 2) + d1) + -1))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y[n] = ^shr(x[n], 2)", "shr is not defined on f32"),
        ("y[n] = exp(^f32, x[n])", '"f32" is neither indexed nor "imm"'),
        ("y[n] = ^exp(x[n], x[n])", "exp takes 1 argument, not 2"),
        ("y[n] = cast(^f33, x[n])", 'unknown type "f33"'),
        ("y[n] = ^cast(i8, x[n])", "the right side is i8, but the left f32"),
        ("y[n] = x[n] + ^x[n+1]", '"x" is indexed in two ways'),
        ("y[2^*n] = x[n]", "an index on the left must be a dim"),
        ("y[n,^n] = x[n]", '"n" is on the left twice'),
        ("y[n] = x[^1.5]", "an index must be affine in the dims"),
        ("y[n] ^== x[n]", 'unexpected "=="'),
        ("y[n] = x[n]^]", 'unexpected "]"'),
        ("y[n] = x[n] ^$", 'unexpected character "$"'),
        ("^", "the expression ends too early"),
    ],
)
def test_a_fault_of_an_expression_has_a_column(text: str, message: str) -> None:
    column = text.index("^")
    with pytest.raises(ExpressionFault) as caught:
        build_behaviour(text.replace("^", ""), floats("x", "y"))
    assert (caught.value.message, caught.value.column) == (message, column)


@pytest.mark.parametrize(
    ("value", "message"), [("300", "300 does not fit into i8"), ("1.5", "1.5 is no integer, but meets i8")]
)
def test_a_number_must_fit_the_integer_type_it_meets(value: str, message: str) -> None:
    y = OperandDecl("y", "s", i8, "dense")
    with pytest.raises(ExpressionFault, match=message):
        build_behaviour(f"y[n] = {value}", [y])


def test_a_dim_that_never_stands_alone_has_no_extent() -> None:
    with pytest.raises(ExpressionFault, match='"k" indexes no operand alone'):
        build_behaviour("y[i] += x[i + k]", floats("x", "y"))


@pytest.mark.parametrize("name", shipped_machines())
def test_each_number_of_a_shipped_machine_has_an_origin(name: str) -> None:
    target = load_machine(name)
    sources = {"assumed", *(target.sources.data if target.sources is not None else ())}

    def check(op: TargetOp | MachinePart) -> None:
        origin = dict(op.origin.data) if op.origin is not None else {}
        for key, attr in op.properties.items():
            if numbers_of(attr) and "all" not in origin:
                assert key in origin, f"{key} of {op}"
        for value in origin.values():
            # A pair also explains how the number was derived.
            key = str(value).removeprefix("[").split(",")[0].strip('"]')
            assert key in sources

    check(target)
    for part in target.parts(MachinePart):
        check(part)


def test_the_derivation_of_a_number_is_kept() -> None:
    origin = load_machine("rapid-core-like").buses()["ext"].origin
    assert origin is not None
    assert str(origin.data["rate"]) == '["onsram", "32e9 / 1.5e9 = 64/3 B per cycle"]'


def test_a_number_may_name_its_own_source_within_a_table_that_names_another() -> None:
    origin = load_machine("vta-pynq").intrinsics()["gemm"].origin
    assert origin is not None
    assert {key: str(value) for key, value in origin.data.items()} == {
        "all": '"isa"',
        "ii": '"hls"',
        "depth": '"assumed"',
        "micro_ops": '"cfg"',
    }


def test_a_part_is_located_at_its_table() -> None:
    text = SMALL.format("{ value = 5, assumed = true }")
    target, faults = read_machine("small.toml", text)
    assert faults == ()
    assert target is not None
    loc = target.units()["cpu"].location
    assert isinstance(loc, FileLineColLoc)
    assert (loc.filename.data, loc.line.data, loc.column.data) == ("small.toml", 5, 1)


def test_a_machine_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.format("{ value = 5, assumed = true }"), encoding="utf-8")
    target = load_machine(str(path))
    assert (target.sym_name.data, target.machine_name, target.frequency_mhz) == ("small_1", "small-1", 5)
    assert validate(str(path)) == ()


def test_loading_a_faulty_file_raises_all_of_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.format('"fast"\ncores = 2'), encoding="utf-8")
    with pytest.raises(MachineFileError) as caught:
        load_machine(str(path))
    assert [fault.loc for fault in caught.value.faults] == [f"{path}:3:12", f"{path}:4:1"]
    assert str(caught.value).count(": error: ") == 2
    assert validate(str(path))[1].message == 'unknown key "cores" in [machine]'


def test_a_machine_that_extends_another_is_the_other_but_for_what_it_says(tmp_path: Path) -> None:
    middle = tmp_path / "middle.toml"
    middle.write_text(
        '[machine]\nname = "middle"\nextends = "vta-pynq"\n[sources]\nmine = "a guess"\n'
        '[[scope]]\nname = "uop"\nsize = { value = 4096, source = "mine" }\n'
        '[[intrinsic]]\nname = "alu_mul"\nremove = true\n'
        '[[queue]]\nfrom = "load"\nto = "compute"\ncapacity = 3\nassumed = true\n'
        '[[processor]]\nname = "arm"\nops = [1, 2]\nsource = "mine"\n'
        '[[bus]]\nname = "spare"\nrate = [1, 1]\nassumed = true\n'
    )
    (tmp_path / "below").mkdir()
    path = tmp_path / "below" / "top.toml"
    path.write_text(
        '[machine]\nname = "top"\nextends = "../middle.toml"\nfreq_mhz = 7\nsource = "mine"\n'
        '[[bus]]\nname = "spare"\nrate = [2, 1]\nsource = "mine"\n'
    )
    base, target = load_machine("vta-pynq"), load_machine(str(path))
    assert (target.machine_name, target.frequency_mhz) == ("top", 7)
    assert target.scope("uop").size_bytes == 4096
    assert list(target.scopes()) == list(base.scopes())
    assert [*target.intrinsics()] == [name for name in base.intrinsics() if name != "alu_mul"]
    assert [queue.capacity_tokens for queue in target.queues()] == [3, 255, 255, 255]
    processor = target.processor()
    assert processor is not None
    assert str(processor.origin) == '{all = "assumed", ops = "mine"}'
    assert target.buses()["spare"].bytes_per_cycle == (2, 1)
    locations = [render_location(part.location) for part in (*target.scopes().values(), target.buses()["spare"])]
    assert [location.split(":")[0] for location in locations] == [
        *["vta-pynq.toml"] * 3,
        str(tmp_path / "below" / ".." / "middle.toml"),
        str(path),
    ]


def test_a_number_has_the_origin_of_the_table_that_it_is_written_in(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    text = '[machine]\nname = "own"\nextends = "vta-pynq"\n[[queue]]\nfrom = "load"\nto = "compute"\n'
    path.write_text(f"{text}capacity = 3\n")
    assert [(fault.loc, fault.message) for fault in validate(str(path))] == [
        (f"{path}:7:1", "capacity has neither a source nor assumed = true")
    ]
    path.write_text(f"{text}capacity = 3\nassumed = true\n")
    origin = load_machine(str(path)).queues()[0].origin
    base = load_machine("vta-pynq").queues()[0].origin
    assert origin is not None
    assert base is not None
    assert dict(origin.data) == {**base.data, "capacity": StringAttr("assumed")}


@pytest.mark.parametrize(
    ("text", "place", "message", "note"),
    [
        ('[machine]\nextend = "gemmini"\n', "2:1", 'unknown key "extend" in [machine]', 'did you mean "extends"?'),
        (
            '[machine]\nname = "own"\nextends = "gemmini"\n[scope]\nname = "spad"\n',
            "4:1",
            "a machine may have more than one scope: write [[scope]]",
            None,
        ),
        (
            '[machine]\nname = "own"\nfreq_mhz = 3\nassumed = true\n[[unit]]\nname = "u"\n'
            '[scope]\nname = "spad"\n[[dma]]\nname = "d"\nunit = "u"\nfrom = ["dram"]\nto = ["spad"]\n'
            "dims = 2\nlatency = 1\nrow_overhead = 1\noutstanding = 1\nassumed = true\n",
            "7:1",
            "a machine may have more than one scope: write [[scope]]",
            None,
        ),
        (
            '[scope]\nname = "a"\n[scope]\nname = "b"\n',
            "3:7",
            "not TOML: Cannot declare ('scope',) twice",
            "a machine may have more than one scope: write [[scope]]",
        ),
        (
            '[machine]\nname = "own"\nextends = "gemmini"\n[[scope]]\nname = "spat"\nremove = true\n',
            "6:1",
            "there is no such scope to remove",
            'did you mean "spad"?',
        ),
    ],
)
def test_what_makes_all_else_wrong_is_told_alone(
    text: str, place: str, message: str, note: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    [fault] = validate(str(path))
    assert (fault.loc, fault.message) == (f"{path}:{place}", message)
    assert fault.notes == ((note,) if note is not None else ())


def test_a_fault_of_the_base_is_told_at_its_place_in_the_base(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        '[machine]\nname = "base"\nfreq_mhz = 1.5\nassumed = true\n[[unit]]\nname = "u"\n'
    )
    path = tmp_path / "own.toml"
    path.write_text('[machine]\nname = "own"\nextends = "base.toml"\nfrequency = 3\n')
    assert [fault.loc for fault in validate(str(path))] == [f"{path}:4:1", f"{tmp_path / 'base.toml'}:3:12"]


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ('"vta"', 'extends: unknown machine "vta"'),
        ('"none.toml"', "extends: cannot read the file: No such file or directory"),
        ("3", "extends must be the name or the path of a machine"),
        ('"broken.toml"', "not TOML: Expected '=' after a key in a key/value pair"),
    ],
)
def test_a_base_that_cannot_be_read_is_told(extends: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[machine]\nname\n")
    path = tmp_path / "own.toml"
    path.write_text(f'[machine]\nname = "own"\nextends = {extends}\n')
    [fault] = validate(str(path))
    assert fault.message == message
    place = f"{path}:3:11" if fault.message.startswith("extends") else f"{tmp_path / 'broken.toml'}:2:5"
    assert fault.loc == place


def test_a_file_may_have_the_name_of_the_machine_that_it_extends(tmp_path: Path) -> None:
    path = tmp_path / "gemmini.toml"
    path.write_text('[machine]\nname = "mine"\nextends = "gemmini"\n')
    assert load_machine(str(path)).machine_name == "mine"


def test_a_base_that_is_the_file_by_another_path_is_told(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'[machine]\nname = "own"\nextends = "../{tmp_path.name}/own.toml"\n')
    assert [fault.message for fault in validate(str(path))] == ["extends leads back to the file itself"]


def test_a_part_that_is_no_table_is_told_also_where_a_base_has_parts(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('scope = [3]\n[machine]\nname = "own"\nextends = "gemmini"\n')
    assert "a scope must be a table, but is an integer" in [fault.message for fault in validate(str(path))]


def test_an_unknown_machine_lists_those_that_ship() -> None:
    with pytest.raises(UserError, match='unknown machine "vta"') as caught:
        load_machine("vta")
    assert "vta-pynq" in caught.value.notes[-1]


def paths_of(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The way to every key and array element of a parsed document."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    elif isinstance(value, list):
        items = enumerate(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for key, inner in items:
        yield (*path, key)
        yield from paths_of(inner, (*path, key))


@pytest.mark.parametrize("name", shipped_machines())
def test_every_key_of_a_machine_file_is_found_in_its_text(name: str) -> None:
    text = machine_text(name)[1]
    lines = text.splitlines()
    positions = locate(text)
    paths = [path for path in paths_of(tomllib.loads(text)) if path != ("template",)]  # which has no header
    assert paths
    for path in paths:
        _, _, line, column = positions.keys[path]
        rest = lines[line - 1][column - 1 :]
        if isinstance(path[-1], str):
            dotted = ".".join(map(str, path))
            assert rest.startswith((f"{path[-1]} =", f'"{path[-1]}" =', f"[{dotted}]", f"[[{path[-1]}]]")), path
        elif len(path) == 2:
            assert rest.startswith(f"[[{path[0]}]]"), path


def test_positions_survive_every_kind_of_toml_value() -> None:
    text = (
        "a = '''x\n[y]\n'''  # [no]\n"
        '"b c" = """ " \\""" ]"""\n'
        "d.e = [ # ]\n  1979-05-27 07:32:00, { f = 'g]', h = [] },\n]\n"
        "[[t]]\n[t.u]\nv = true\n[[t]]\n v = 1_000\n"
    )
    positions = locate(text, "t.toml")
    assert set(paths_of(tomllib.loads(text))) <= set(positions.keys)
    assert str(positions.value(("b c",))) == "t.toml:4:9"
    assert str(positions.value(("d", "e", 1, "f"))) == "t.toml:6:30"
    assert str(positions.key(("t", 0, "u", "v"))) == "t.toml:10:1"
    assert str(positions.key(("t", 1, "v"))) == "t.toml:12:2"
    assert str(positions.key(("t", 1, "missing"))) == "t.toml:11:1"
    assert str(positions.key(("elsewhere",))) == "t.toml:1:1"


def test_the_machine_files_are_part_of_the_package() -> None:
    names = {file.name for file in resources.files("penstock.machines").iterdir()}
    assert {f"{name}.toml" for name in shipped_machines()} <= names
