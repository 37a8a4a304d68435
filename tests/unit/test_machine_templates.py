# SPDX-License-Identifier: Apache-2.0
"""Families of parts in a machine file: what they stand for."""

from __future__ import annotations

from pathlib import Path

from penstock.lowering.from_machine_toml import load_machine, read_machine

HEAD = """
[machine]
name = "family"
freq_mhz = 100
assumed = true

[[scope]]
name = "buf"
size = 4096
granule = 4
dtypes = ["f32"]
assumed = true

[[unit]]
name = "load"

[[unit]]
name = "lanes"

[[dma]]
each = [{ name = "fetch", from = ["dram"], to = ["buf"] }, { name = "store", from = ["buf"], to = ["dram"] }]
unit = "load"
dims = 2
latency = 1
row_overhead = 0
outstanding = 1
assumed = true
"""
OPERANDS = """operands = [
  { name = "x", scope = "buf", dtype = "f32", role = "in" },
  { name = "y", scope = "buf", dtype = "f32", role = "inout" },
]
"""
FAMILY = (
    """
[template.base]
unit = "lanes"
shape = { n = [1, "$width"] }
width = 8
depth = 2
assumed = true

[template.lanes]
template = "base"
behaviour = "y[n] = y[n] $op x[n]"
"""
    + OPERANDS
)


def text_of(*parts: str) -> str:
    target, faults = read_machine("family.toml", HEAD + "".join(parts))
    assert not faults, faults
    for op in target.walk() if target is not None else ():
        op.properties.pop("origin", None)
    return str(target)


def spelled(name: str, op: str, ii: int = 1, width: int = 8) -> str:
    return (
        f'\n[[intrinsic]]\nname = "{name}"\nunit = "lanes"\nbehaviour = "y[n] = y[n] {op} x[n]"\n{OPERANDS}'
        f"shape = {{ n = [1, {width}] }}\nii = {ii}\ndepth = 2\nassumed = true\n"
    )


def test_a_table_for_several_parts_is_those_parts_in_its_place() -> None:
    family = """
[[intrinsic]]
template = "lanes"
ii = 1
assumed = true
each = [{ name = "add", op = "+" }, { name = "sub", op = "-", ii = 3 }]
"""
    written = text_of(FAMILY, spelled("first", "*"), family, spelled("last", "*"))
    parts = [spelled("first", "*"), spelled("add", "+"), spelled("sub", "-", 3), spelled("last", "*")]
    assert written == text_of(*parts)


def test_a_part_replaces_what_its_template_says_and_a_parameter_has_a_default() -> None:
    own = '[[intrinsic]]\nname = "wide"\ntemplate = "lanes"\nop = "+"\nwidth = 16\nii = { value = 2, assumed = true }\n'
    assert text_of(FAMILY, own) == text_of(spelled("wide", "+", 2, 16))


def test_queues_share_a_table() -> None:
    family = '[[queue]]\neach = [{ from = "load", to = "lanes" }, { from = "lanes", to = "load", capacity = 3 }]\n'
    rest = 'on_full = "block"\nassumed = true\n'
    there = f'[[queue]]\nfrom = "load"\nto = "lanes"\ncapacity = 2\n{rest}'
    back = f'[[queue]]\nfrom = "lanes"\nto = "load"\ncapacity = 3\n{rest}'
    assert text_of(f"{family}capacity = 2\n{rest}") == text_of(there, back)


def test_a_dollar_is_written_twice_and_braces_end_a_key() -> None:
    sources = '[sources]\n"$x1" = "a sheet"\n'
    own = 'name = "add"\ntemplate = "lanes"\nop = "+"\nii = 1\nfigure = "x"\nsource = "$$${figure}1"\n'
    assert text_of(sources, FAMILY, f"[[intrinsic]]\n{own}") == text_of(sources, spelled("add", "+"))


def test_a_machine_has_the_templates_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(HEAD + FAMILY)
    own = tmp_path / "own.toml"
    own.write_text(
        '[machine]\nname = "own"\nextends = "base.toml"\n'
        '[[intrinsic]]\nname = "mul"\ntemplate = "lanes"\nop = "*"\nii = 1\nassumed = true\n'
    )
    assert str(load_machine(str(own)).intrinsics()["mul"].generic.body.block.first_op) == (
        "%0 = arith.mulf %out, %in : f32"
    )


def test_a_fault_of_what_a_part_has_of_its_template_is_told_there() -> None:
    family = FAMILY.replace("depth = 2", "depth = -2")
    part = '[[intrinsic]]\nname = "add"\ntemplate = "lanes"\nop = "+"\nii = 1\nassumed = true\n'
    _, [fault] = read_machine("family.toml", HEAD + family + part)
    line = (HEAD + family).splitlines().index("depth = -2") + 1
    assert (fault.loc, fault.message) == (f"family.toml:{line}:9", "depth must be at least 0, but is -2")
