# SPDX-License-Identifier: Apache-2.0
"""Tiles that cannot be computed as a schedule says: each is refused, says why, and leaves the kernel as it was."""

from __future__ import annotations

import pytest
from programs import parsed_in_context
from schedules import apply_schedule
from xdsl.dialects.func import FuncOp

from penstock.dialects.diagnostics import UserError
from penstock.passes.schedule.schedule import Schedule

PROGRAM = """#id = affine_map<(m, n) -> (m, n)>
#m = affine_map<(m, n) -> (m)>
#to = affine_map<(m, n) -> (n, m)>
func.func @k(%x: tensor<8x16xi32>) -> tensor<{shape}xi32> {{
  %e = tensor.empty() : tensor<8x16xi32>
  %y = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%x : tensor<8x16xi32>) outs(%e : tensor<8x16xi32>) {{
  ^bb0(%a: i32, %o: i32):
    %s = arith.addi %a, %a : i32
    linalg.yield %s : i32
  }} -> tensor<8x16xi32>
  %f = tensor.empty() : tensor<{shape}xi32>
  %z = linalg.generic {{indexing_maps = [{read}, {written}], iterator_types = ["parallel", "{kind}"]}}
      ins(%y : tensor<8x16xi32>) outs(%f : tensor<{shape}xi32>) {{
  ^bb0(%a: i32, %o: i32):
    %t = arith.muli %a, %a : i32
    linalg.yield %t : i32
  }} -> tensor<{shape}xi32>
  func.return %z : tensor<{shape}xi32>
}}
"""
SAME = PROGRAM.format(shape="8x16", read="#id", written="#id", kind="parallel")
TRANSPOSED = PROGRAM.format(shape="16x8", read="#to", written="#id", kind="parallel")
REDUCED = PROGRAM.format(shape="8", read="#id", written="#m", kind="reduction")
# Of what the loop starts from it replaces half.
PARTIAL = SAME.replace(
    "func.return %z",
    """%c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %c2 = arith.constant 2 : index
  %w = scf.for %i = %c0 to %c4 step %c2 iter_args(%all = %y) -> (tensor<8x16xi32>) {
    %piece = tensor.extract_slice %all[%i, 0] [2, 16] [1, 1] : tensor<8x16xi32> to tensor<2x16xi32>
    %next = tensor.insert_slice %piece into %all[%i, 0] [2, 16] [1, 1] : tensor<2x16xi32> into tensor<8x16xi32>
    scf.yield %next : tensor<8x16xi32>
  }
  func.return %w""",
)
DIVIDED = SAME.replace("%t = arith.muli", "%t = arith.divsi")
PADDED = (
    '{} pad_to_multiple_of [{}] {{copy_back_op = "none", padding_dimensions = [{}], '
    "padding_values = [0 : i32, 0 : i32]}}"
)
OTHER = "operand 0 is computed in the tile, and indexed otherwise than the result"


@pytest.mark.parametrize(
    ("program", "op", "message"),
    [
        pytest.param(TRANSPOSED, "%a, %b, %c, %d = schedule.tile %y fusing(%z) sizes [4, 4]", OTHER, id="transposed"),
        pytest.param(REDUCED, "%a, %b, %c = schedule.tile %y fusing(%z) sizes [4, 0]", OTHER, id="reduced"),
        pytest.param(
            TRANSPOSED,
            '%a, %b = schedule.tile %z fusing(%y) sizes [32, 16] edges ["padded", "padded"]',
            OTHER,
            id="padded",
        ),
        pytest.param(
            SAME,
            '%a, %b = schedule.tile %z fusing(%y) sizes [16, 32] edges ["padded", "padded"] unpadded [0]',
            "operand 0 is computed without padding, and this op is padded",
            id="unpadded",
        ),
        pytest.param(
            SAME,
            "%a, %b, %c = transform.structured.tile_using_for %y tile_sizes [4, 0] "
            ": (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)",
            "the sizes make 1 loops, and there are handles for 2",
            id="handles",
        ),
        *(
            pytest.param(
                program,
                f"%a, %b = transform.structured.tile_using_forall {ops} "
                ": (!transform.any_op) -> (!transform.any_op, !transform.any_op)",
                message,
                id=f"forall {ops}",
            )
            for program, ops, message in (
                (REDUCED, "%z tile_sizes [4, 8]", "dim 1 is a reduction, and tiles that are computed at once"),
                (
                    REDUCED.replace('"reduction"', '"parallel"'),
                    "%z tile_sizes [4, 8]",
                    "dim 1 does not index the result",
                ),
                (SAME, "%z tile_sizes [3]", "size 3 does not divide dim 0 of 8"),
                (SAME, "%z tile_sizes [0, 32]", "size 32 is larger than dim 1 of 16"),
                (SAME, "%z num_threads [0, 3]", "dim 1 of 16 has no 3 tiles of one size"),
                (SAME, "%z num_threads [2] tile_sizes [4]", "one of the two is given"),
                (SAME, "%z tile_sizes [0, 0]", "no dim is tiled"),
                (SAME, "%z tile_sizes [4, 4, 4]", "3 sizes for an op of 2 dims"),
                (SAME, "%z num_threads [2, 2, 2]", "3 sizes for an op of 2 dims"),
                (SAME, "%z tile_sizes [-4]", "a size is 0 or more, not -4"),
                (SAME, "%z num_threads [-2]", "a size is 0 or more, not -2"),
                (
                    SAME,
                    "%z tile_sizes [4](mapping = [#gpu.thread<y>, #gpu.thread<x>])",
                    "1 loops cannot be mapped to 2",
                ),
            )
        ),
        pytest.param(
            SAME,
            "%a, %b = transform.structured.tile_using_for %z tile_sizes [-4] "
            ": (!transform.any_op) -> (!transform.any_op, !transform.any_op)",
            "a size is 0 or more, not -4",
            id="negative",
        ),
        pytest.param(
            SAME,
            "%a, %b = transform.structured.fuse %z [-4] "
            ": (!transform.any_op) -> (!transform.any_op, !transform.any_op)",
            "a size is 0 or more, not -4",
            id="negative, fused",
        ),
        pytest.param(
            DIVIDED,
            '%a, %b = schedule.tile %z fusing(%y) sizes [16, 32] edges ["padded", "padded"]',
            "could divide by zero",
            id="padded, divided",
        ),
        pytest.param(
            SAME,
            "%a, %b = transform.structured.fuse %z {tile_sizes = [4, 0], use_forall} "
            ": (!transform.any_op) -> (!transform.any_op, !transform.any_op)",
            "it has no use_forall",
            id="use_forall",
        ),
        *(
            pytest.param(
                program,
                f"%a, %b, %c = transform.structured.pad {ops} "
                ": (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)",
                message,
                id=f"pad {ops}",
            )
            for program, ops, message in (
                (REDUCED, PADDED.format("%z", "5", "1"), "dim 1 is a reduction, which the padding would change"),
                (SAME, PADDED.format("%z", "3", "2"), "the op has 2 dims: there is no dim 2"),
                (SAME, PADDED.format("%z", "0", "1"), "a multiple of 1 or more, not of 0"),
                (SAME, PADDED.format("%z", "3", "1").replace("0 : i32, ", ""), "operand 1 is padded, and there are 1"),
                (SAME, PADDED.format("%z", "3", "1").replace("i32", "i8"), "with a value of type i32, not with 0 : i8"),
                (SAME, PADDED.format("%z", "3", "1").replace("none", "x.y"), "is a value, which x.y does not store"),
                (SAME, PADDED.format("%z", "3", "1").replace("{", "{pack_paddings = [1], "), "as copies"),
                (SAME, PADDED.format("%z", "3", "1").replace("{", "{transpose_paddings = [[1, 0]], "), "are not done"),
                (DIVIDED, PADDED.format("%z", "3", "1"), "could divide by zero"),
            )
        ),
        pytest.param(PARTIAL, "%a = schedule.compute_at %y at %i", "the loop reads nothing", id="partial"),
    ],
)
def test_what_no_tile_can_be_computed_of_is_refused(program: str, op: str, message: str) -> None:
    ctx, module = parsed_in_context(program)
    before = str(module)
    with pytest.raises(UserError, match=message):
        apply_schedule(ctx, module, op)
    assert str(module) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unpadded": [0]}, "0 ops are fused: there is no op 0 without padding"),
        ({"slots": {"spad": 0}}, 'the slots of "spad" are a number from 1'),
        ({"edges": ["round", "whole"]}, 'there is no edge "round"'),
    ],
)
def test_what_makes_no_op_is_refused_in_python_too(options: dict[str, list[int]], message: str) -> None:
    _, module = parsed_in_context(SAME)
    (kernel,) = (op for op in module.ops if isinstance(op, FuncOp))
    schedule = Schedule(kernel)
    target, _ = schedule.match("linalg.generic")
    before, text = str(module), str(schedule.sequence)
    with pytest.raises(UserError, match=message):
        schedule.tile(target, [4, 4], **options)  # pyright: ignore[reportArgumentType]
    assert (str(module), str(schedule.sequence)) == (before, text)
