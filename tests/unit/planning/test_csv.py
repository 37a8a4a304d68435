# SPDX-License-Identifier: Apache-2.0
"""The CSV of minimalloc, read and written: its columns, their other names, and gaps of which part lives on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.minimalloc_csv import capacity_in, load_csv, parse_csv, write_csv
from penstock.passes.planning.problem import Buffer, Plan, Problem

LADDER = """id,lower,upper,size
a,0,3,4
b,2,6,4
c,5,9,4
d,8,12,4
e,0,12,2
"""


def only(text: str, bank_size: int | None = None) -> Buffer:
    """The one buffer of a problem."""
    (found,) = parse_csv(text, bank_size=bank_size)[0].buffers
    return found


def test_a_csv_file_carries_its_capacity_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "ladder.1024.csv"
    path.write_text(LADDER)
    problem = load_csv(path)[0]
    assert problem.capacity == 1024
    assert problem.buffers[1] == Buffer("b", ((2, 6),), 4)
    assert load_csv(path, 12)[0].capacity == 12


@pytest.mark.parametrize(
    ("name", "capacity"),
    [("A.1048576.csv", 1048576), ("a.b.8.csv", 8), ("1024.csv", None), ("a.csv", None), ("a.8.txt", None)],
)
def test_only_a_number_before_the_ending_is_a_capacity(name: str, capacity: int | None) -> None:
    assert capacity_in(name) == capacity


@pytest.mark.parametrize(
    "header", ["buffer_id, size, begin, end", "buffer,size,start,end", "id,size,lower,end", "ID,Size,Lower,End"]
)
def test_other_names_of_columns_are_understood_and_end_is_inclusive(header: str) -> None:
    assert only(f"{header}\nx, 16, 3, 7\n") == Buffer("x", ((3, 8),), 16)


def test_the_lines_of_other_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ladder.csv"
    path.write_bytes(b"\xef\xbb\xbf" + LADDER.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    assert load_csv(path)[0] == parse_csv(LADDER)[0]


def test_a_quoted_id_may_hold_a_comma() -> None:
    assert only('id,lower,upper,size\n"a, ""b""",0,1,4\n').id == 'a, "b"'


def test_gaps_alignment_and_offsets_are_read_and_written_back() -> None:
    text = "id,lower,upper,size,alignment,gaps,offset\nx,0,12,16,4,2-4 6-9,32\ny,1,2,8,1,,0\n"
    problem, plan = parse_csv(text)
    assert problem.buffers[0].intervals == ((0, 2), (4, 6), (9, 12))
    assert plan == Plan({"x": 32, "y": 0})
    assert write_csv(problem, plan) == text
    assert write_csv(parse_csv(LADDER)[0]) == LADDER


def test_a_gap_with_a_window_keeps_those_bytes_alive() -> None:
    text = "id,lower,upper,size,gaps\nx,0,12,16,2-4@0:8 6-9\n"
    found = only(text)
    assert found.pieces == (
        ((0, 2), (0, 16)),
        ((2, 4), (0, 8)),
        ((4, 6), (0, 16)),
        ((9, 12), (0, 16)),
    )
    assert write_csv(Problem((found,))) == text


def test_gaps_may_touch_each_other_and_the_ends_of_a_life() -> None:
    assert only("id,lower,upper,size,gaps\nx,0,12,16,8-12 4-6@8:16 6-8@0:8\n").pieces == (
        ((0, 4), (0, 16)),
        ((4, 6), (8, 16)),
        ((6, 8), (0, 8)),
    )
    assert only("id,lower,upper,size,gaps\nx,0,12,16,0-4@0:8\n").lower == 0


def test_a_gap_in_which_all_lives_on_is_none() -> None:
    assert only("id,lower,upper,size,gaps\nx,0,12,16,2-4@0:16\n") == Buffer("x", ((0, 12),), 16)


def test_gaps_under_end_are_inclusive_as_lifetimes_are() -> None:
    text = "start,size,buffer,end,alignment,gaps\n6,18,1,11,2,7-8\n"
    assert only(text) == Buffer("1", ((6, 7), (9, 12)), 18, 2)


def test_hints_and_banks_are_read_and_written_back() -> None:
    text = "id,lower,upper,size,hint,banks\nx,0,2,16,32,0 2\ny,0,2,16,,\n"
    problem, _ = parse_csv(text, bank_size=16)
    assert problem.buffers[0] == Buffer("x", ((0, 2),), 16, banks=(0, 2), hint=32)
    assert problem.buffers[1] == Buffer("y", ((0, 2),), 16)
    assert problem.bank_size == 16
    assert write_csv(problem) == text


def test_offsets_are_a_plan_unless_they_are_asked_to_be_fixed(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("id,lower,upper,size,offset\nx,0,2,16,32\ny,0,2,16,\n")
    problem, plan = load_csv(path)
    assert (problem.buffers[0].offset, plan) == (None, Plan({"x": 32}))
    problem, plan = load_csv(path, fixed=True)
    assert [each.offset for each in problem.buffers] == [32, None]
    assert write_csv(problem) == path.read_text()


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "csv", "the file is empty"),
        (" \n\n", "csv", "the file is empty"),
        ("a,0,1,4\nb,0,1,4\n", "csv:1:1", "the header is missing"),
        ("id,lower,upper\na,0,1\n", "csv:1:1", '"size" is missing'),
        ("id,lower,size\na,0,1\n", "csv:1:1", '"upper" and "end"'),
        ("id,lower,upper,end,size\na,0,1,1,2\n", "csv:1:16", '"upper" and "end"'),
        ("id,lower,upper,size,colour\na,0,1,2,red\n", "csv:1:21", 'no column is called "colour"'),
        ("id,lower,upper,size,buffer\na,0,1,2,a\n", "csv:1:21", 'the column "id" is there twice'),
        ("id,lower,upper,size\na,0,1,2\nb,0,one,2\n", "csv:3:5", '"one" is no integer, in the column "upper"'),
        ("id,lower,upper,size\na,0,1,\n", "csv:2:7", '"" is no integer, in the column "size"'),
        ("id,lower,upper,size\na,0,1,1_000\n", "csv:2:7", '"1_000" is no integer'),
        (f"id,lower,upper,size\na,0,1,{'9' * 5000}\n", "csv:2:7", "more than 18 digits"),
        ("id,lower,upper,size\n,0,1,2\n", "csv:2:1", "a buffer has no id"),
        ("id,lower,upper,size\na,4,4,2\n", "csv:2:5", "buffer a is never alive: lower 4, upper 4"),
        ("id,lower,end,size\na,4,3,2\n", "csv:2:5", "buffer a is never alive: lower 4, end 3"),
        ("id,lower,upper,size\na,0,4\n", "csv:2:5", "3 values stand under 4 columns"),
        ("id,lower,upper,size\na,0,4,2,7\n", "csv:2:9", "5 values stand under 4 columns"),
        ("id,lower,upper,size\na,0,4,0\n", "csv:2:7", "buffer a has 0 bytes"),
        ("id,lower,upper,size\na,0,4,-2\n", "csv:2:7", "buffer a has -2 bytes"),
        ('id,lower,upper,size\n"a,0,4,2\n', "csv:2:1", "a quote is not closed"),
        ("id,lower,upper,size,alignment\na,0,4,2,3\n", "csv:2:9", "the alignment 3 of buffer a is no power of two"),
        ("id,lower,upper,size,alignment\na,0,4,2,0\n", "csv:2:9", "the alignment 0 of buffer a is no power of two"),
        ("id,lower,upper,size,gaps\na,0,4,2,1-6\n", "csv:2:9", r"the gap 1-6 of buffer a is not within its life"),
        ("id,lower,upper,size,gaps\na,0,4,2,1:2\n", "csv:2:9", '"1:2" is no gap'),
        ("id,lower,upper,size,gaps\na,0,9,2,1-4 3-5\n", "csv:2:9", "the gap 3-5 of buffer a overlaps another"),
        ("id,lower,upper,size,gaps\na,0,4,2,0-4\n", "csv:2:9", "gaps cover all of its life"),
        ("id,lower,upper,size,gaps\na,0,4,2,1-2@0:3\n", "csv:2:9", "the bytes 0:3 of a gap are not within the 2"),
        ("id,lower,upper,size,gaps\na,0,4,2,1-2@1:1\n", "csv:2:9", "the bytes 1:1 of a gap"),
        ("id,lower,upper,size,offset\na,0,4,2,-2\n", "csv:2:9", "the offset -2 of buffer a lies before the memory"),
        ("id,lower,upper,size,hint\na,0,4,2,-2\n", "csv:2:9", "the hint -2 of buffer a lies before the memory"),
        ("id,lower,upper,size,banks\na,0,4,2,0\n", "csv:2:9", "nothing says how large they are"),
        ("id,lower,upper,size,banks\na,0,4,2,-1\n", "csv:2:9", '"-1" are no banks'),
        ("id,lower,upper,size\na,0,1,2\na,0,1,2\n", "csv:3:1", 'two buffers have the id "a"'),
    ],
)
def test_a_faulty_csv_is_refused_at_its_row_and_column(text: str, place: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_csv(text)
    assert caught.value.loc == place


def test_a_memory_without_bytes_is_refused() -> None:
    with pytest.raises(UserError, match="the capacity is 0 bytes") as caught:
        parse_csv(LADDER, 0)
    assert caught.value.loc == "csv"


def test_a_buffer_larger_than_the_memory_or_a_bank_is_refused() -> None:
    with pytest.raises(UserError, match="buffer a of 4 bytes is larger than the capacity of 3") as caught:
        parse_csv(LADDER, 3)
    assert caught.value.loc == "csv:2:7"
    with pytest.raises(UserError, match="buffer a of 8 bytes is larger than a bank of 4"):
        parse_csv("id,lower,upper,size,banks\na,0,1,8,0\n", bank_size=4)


@pytest.mark.parametrize(
    ("rows", "place", "message"),
    [
        ("a,0,4,8,1,0\nb,0,4,8,1,\nc,2,6,8,1,4\n", "csv:4:11", "buffers a .* and c .* overlap while both are alive"),
        ("a,0,4,8,4,2\n", "csv:2:11", "not aligned to 4"),
        ("a,0,4,8,1,60\n", "csv:2:11", "buffer a ends at 68 of 64 bytes"),
    ],
)
def test_places_given_by_hand_that_are_no_plan_are_refused(rows: str, place: str, message: str) -> None:
    text = f"id,lower,upper,size,alignment,offset\n{rows}"
    parse_csv(text, 64)
    with pytest.raises(UserError, match=message) as caught:
        parse_csv(text, 64, fixed=True)
    assert caught.value.loc == place


def test_a_csv_file_that_is_not_there_or_no_text_is_the_fault_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read it: No such file"):
        load_csv(tmp_path / "none.csv")
    (tmp_path / "noise.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no text in UTF-8"):
        load_csv(tmp_path / "noise.csv")
