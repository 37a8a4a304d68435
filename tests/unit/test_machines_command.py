# SPDX-License-Identifier: Apache-2.0
"""`penstock machines` on machines without a fault; those with one are in tests/errors."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_names import machine_text, shipped_machines
from penstock.tools.machine_svg import machine_svg, rate_text
from penstock.tools.machine_tables import describe, number_formats, provenance, size_text

if TYPE_CHECKING:
    from tests.conftest import Command

OWN = """\
[machine]
name = "own"
freq_mhz = { value = 50, assumed = true }

[sources]
sheet = "the data sheet"

[[scope]]
name = "buf"
size = { value = 1000, source = "sheet", derived = "500 entries" }
granule = { value = 2, assumed = true }
dtypes = ["i8"]

[[unit]]
name = "mac"

[[dma]]
name = "fill"
unit = "mac"
from = ["dram"]
to = ["buf"]
dims = 1
latency = 20
row_overhead = 0
outstanding = 1
source = "sheet"

[[dma]]
name = "drain"
unit = "mac"
from = ["buf"]
to = ["dram"]
dims = 1
latency = 20
row_overhead = 0
outstanding = 1
source = "sheet"

[[intrinsic]]
name = "dot"
unit = "mac"
behaviour = "s[n] += a[k] * b[k,n]"
operands = [
  { name = "a", scope = "buf", dtype = "i8", role = "in" },
  { name = "b", scope = "buf", dtype = "i8", role = "in", strides = "granule" },
  { name = "s", scope = "buf", dtype = "i8", role = "inout" },
]
shape = { n = 2, k = { value = [1, 8], source = "sheet" } }
ii = 3
depth = 0
assumed = true
"""


def test_the_list_has_a_line_for_each_machine(penstock: Command) -> None:
    finished = penstock("machines", "list", "--table")
    heading, *lines = finished.out.splitlines()
    assert finished.status == 0
    assert heading.split() == ["name", "frequency", "MAC/cycle", "numbers", "sourced", "scopes"]
    assert [line.split()[0] for line in lines] == shipped_machines()
    by_name = {line.split()[0]: line.split() for line in lines}
    assert by_name["gemmini-fp32"][1:5] == ["1000", "MHz", "16", "f32"]
    assert by_name["gemmini-fp32"][-6:] == ["spad", "256", "KiB,", "acc", "64", "KiB"]
    assert by_name["vta-pynq"][3:7] == ["256", "i8", "to", "i32"]
    assert by_name["host"][3:] == ["0", "-", "0", "of", "1", "-"]


def test_the_list_fits_the_width_of_a_screen(penstock: Command) -> None:
    assert max(map(len, penstock("machines", "list", "--table").out.splitlines())) <= 120


def test_the_list_counts_the_rows_that_name_a_source(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    target = load_machine(str(path))
    assert provenance(target) == (10, 15)
    assert number_formats(target) == "i8"


def test_show_prints_the_target(penstock: Command) -> None:
    finished = penstock("machines", "show", "gemmini-fp32")
    assert finished.status == 0
    assert finished.out == str(load_machine("gemmini-fp32")) + "\n"
    assert "acc[m, n] += a[m, k] * b[k, n]  m 1 to 4, n 1 to 4, k 1 to 4  a f32 in spad" in finished.err
    assert penstock("machines", "show", "gemmini-fp32", "-q").err == ""


def test_the_picture_has_each_memory_engine_and_intrinsic(penstock: Command, tmp_path: Path) -> None:
    target = load_machine("neural-cluster")
    assert penstock("machines", "show", "neural-cluster", "--svg", "m.svg").status == 0
    (tmp_path / "own.toml").write_text(file := machine_text("host-avx2")[1])
    shown = penstock("machines", "show", "own.toml")
    assert shown.err == "computes all of it on its processor: it declares no intrinsics\n"
    done = penstock("machines", "show", "own.toml", "--svg", "./own.toml")
    assert (done.status, done.err) == (2, "error: --svg and the machine file would be one file: ./own.toml\n")
    assert (tmp_path / "own.toml").read_text() == file
    text = (tmp_path / "m.svg").read_text(encoding="utf-8")
    assert text == machine_svg(target) == penstock("machines", "show", "neural-cluster", "--svg", "-").out
    root = ElementTree.fromstring(text)
    said = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    named = [*target.scopes(), *target.dmas(), *target.intrinsics(), *(f"unit {name}" for name in target.units())]
    assert {"dram", *named} <= set(said)
    assert "6.40 B/cycle of bus ddr, latency 200" in said
    assert "below sram" in said
    rates = ("1", "1/8", "1/1000", "2469/2")
    assert [rate_text(Fraction(each)) for each in rates] == ["1", "0.125", "0.00100", "1234.50"]


def test_the_table_shows_each_number_with_its_origin(penstock: Command, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    assert penstock("machines", "validate", path).out == f"{path}: valid\n"
    finished = penstock("machines", "show", path, "--table")
    assert finished.status == 0
    assert (
        finished.out
        == """\
machine own
  frequency  50  assumed
  peak 16/3 MAC/cycle

computes
  dot  on mac  s[n] += a[k] * b[k, n]  n 2, k 1 to 8  a i8 in buf, b i8 in buf, s i8 in buf

scope "buf"
  size     1000  sheet, 500 entries
  granule  2     assumed
  dtypes   i8

unit "mac"

dma "fill"
  unit          mac
  from          dram
  to            buf
  dims          1     sheet
  latency       20    sheet
  row_overhead  0     sheet
  outstanding   1     sheet

dma "drain"
  unit          mac
  from          buf
  to            dram
  dims          1     sheet
  latency       20    sheet
  row_overhead  0     sheet
  outstanding   1     sheet

intrinsic "dot"
  s[n] += a[k] * b[k,n]
  in a: i8 in buf, dense
  in b: i8 in buf, granule
  inout s: i8 in buf, dense
  n      2       assumed
  k      1 to 8  sheet
  unit   mac
  ii     3       assumed
  depth  0       assumed

sources
  sheet: the data sheet
"""
    )


def test_the_table_of_an_intrinsic_with_an_immediate_says_where_it_travels() -> None:
    assert "  imm imm: i32 in the instruction" in list(describe(load_machine("vta-pynq")))


def test_sizes_are_told_in_the_largest_unit_that_divides_them() -> None:
    assert [size_text(size) for size in (1 << 21, 3 << 10, 1 << 10, 1000)] == ["2 MiB", "3 KiB", "1 KiB", "1000 B"]
