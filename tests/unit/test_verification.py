# SPDX-License-Identifier: Apache-2.0
"""Our own verification: SSA dominance, slices and pads."""

from __future__ import annotations

import pytest
from programs import parsed, verified
from xdsl.dialects import arith, func, scf
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.verification import FaultyOp, find_invalid, verify_module

GOOD = """
func.func @f(%n: index, %p: i1) -> index {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %s = scf.for %i = %zero to %n step %one iter_args(%a = %zero) -> (index) {
    %b = arith.addi %a, %i : index
    scf.yield %b : index
  }
  cf.cond_br %p, ^bb1, ^bb2(%s : index)
^bb1:
  %t = arith.addi %s, %one : index
  cf.br ^bb2(%t : index)
^bb2(%u: index):
  %v = arith.addi %u, %s : index
  func.return %v : index
}
"""


def test_nested_regions_and_dominating_blocks_are_accepted() -> None:
    verify_module(verified(GOOD))


def test_a_use_before_its_definition_is_refused() -> None:
    module = verified("func.func @f() { %a = arith.constant 1 : index  %b = arith.addi %a, %a : index  func.return }")
    add = next(op for op in module.walk() if isinstance(op, arith.AddiOp))
    constant = next(op for op in module.walk() if isinstance(op, arith.ConstantOp))
    constant.detach()
    Rewriter.insert_op(constant, InsertPoint.after(add))
    with pytest.raises(FaultyOp, match="uses %a, whose definition does not dominate"):
        verify_module(module)


def test_a_use_outside_the_defining_region_is_refused() -> None:
    module = verified(GOOD)
    inner = next(op for op in module.walk() if isinstance(op.parent_op(), scf.ForOp))
    returned = next(op for op in module.walk() if isinstance(op, func.ReturnOp))
    returned.operands[0] = inner.results[0]
    module.verify()
    with pytest.raises(FaultyOp, match=r"func\.return.*%b"):
        verify_module(module)


def test_a_branch_that_does_not_dominate_is_refused() -> None:
    module = verified(GOOD)
    adds = [op for op in module.walk() if isinstance(op, arith.AddiOp)]
    adds[-1].operands[0] = adds[-2].results[0]
    with pytest.raises(FaultyOp, match="does not dominate"):
        verify_module(module)


def test_an_isolated_function_sees_nothing_from_outside() -> None:
    module = verified(
        "func.func @f(%x: index) { func.return } func.func @g(%y: index) { %z = arith.addi %y, %y : index func.return }"
    )
    first, second = (op for op in module.ops if isinstance(op, func.FuncOp))
    add = next(op for op in second.walk() if isinstance(op, arith.AddiOp))
    add.operands[0] = first.body.block.args[0]
    with pytest.raises(FaultyOp, match="uses %x"):
        verify_module(module)


BAD_SLICES = {
    "%s = memref.subview %m[0, 0] [4, 4] [1, 1] : memref<8x8xf32> to memref<77xf32>": "yields memref<77xf32>",
    "%s = memref.subview %m[6, 0] [4, 8] [1, 1] : memref<8x8xf32> to "
    "memref<4x8xf32, strided<[8, 1], offset: 48>>": "reaches element 9 of dim 0, which has 8",
    "%s = memref.subview %m[0, 0] [4, 4] [1, 1] : memref<8x8xf32> to memref<4x4xf32, strided<[4, 1]>>": "expected",
    "%s = tensor.extract_slice %t[0, 0] [4, 4] [1, 1] : tensor<8x8xf32> to tensor<4x5xf32>": "its sizes are 4x4",
    "%s = tensor.extract_slice %t[0, 5] [4, 4] [1, 1] : tensor<8x8xf32> to tensor<4x4xf32>": "reaches element 8",
    "%s = tensor.extract_slice %t[0, 0] [4, 4] [1, 1] : tensor<8x8xf32> to tensor<4x4xf64>": "yields f64",
    "%s = tensor.insert_slice %t into %t[0, 0] [4, 4] [1, 1] : tensor<8x8xf32> into tensor<8x8xf32>": "inserts",
    "%s = tensor.pad %t low[1, 1] high[1, 1] { ^bb0(%i: index, %j: index): tensor.yield %c : f32 } "
    ": tensor<8x8xf32> to tensor<10x11xf32>": "makes dim 1 11 long",
    "%s = tensor.pad %t low[1, 1] high[1, 1] { ^bb0(%i: index, %j: index): tensor.yield %i : index } "
    ": tensor<8x8xf32> to tensor<10x10xf32>": "not f32",
}


@pytest.mark.parametrize(("body", "message"), BAD_SLICES.items())
def test_a_slice_that_is_not_what_it_says_is_refused(body: str, message: str) -> None:
    module = verified(f"func.func @f(%m: memref<8x8xf32>, %t: tensor<8x8xf32>, %c: f32) {{ {body} \n func.return }}")
    with pytest.raises(FaultyOp, match=message):
        verify_module(module)


GOOD_SLICES = [
    "%s = memref.subview %m[0, 1] [4, 4] [1, 1] : memref<8x8xf32> to memref<4x4xf32, strided<[8, 1], offset: 1>>",
    "%s = memref.subview %m[2, 0] [1, 8] [1, 1] : memref<8x8xf32> to memref<8xf32, strided<[1], offset: 16>>",
    "%s = memref.subview %m[%n, 0] [1, 8] [1, 1] : memref<8x8xf32> to memref<1x8xf32, strided<[8, 1], offset: ?>>",
    "%s = tensor.extract_slice %t[0, %n] [4, 4] [1, 2] : tensor<8x8xf32> to tensor<4x4xf32>",
    "%s = tensor.extract_slice %t[0, 0] [8, 1] [1, 1] : tensor<8x8xf32> to tensor<8xf32>",
]


@pytest.mark.parametrize("body", GOOD_SLICES)
def test_slices_may_move_and_drop_unit_dims(body: str) -> None:
    verify_module(
        verified(f"func.func @f(%m: memref<8x8xf32>, %t: tensor<8x8xf32>, %n: index) {{ {body} \n func.return }}")
    )


def test_an_op_that_was_made_and_forgotten_is_noticed() -> None:
    module = verified("func.func @f() { %a = arith.constant 1 : index  func.return }")
    (constant,) = [op for op in module.walk() if isinstance(op, arith.ConstantOp)]
    forgotten = arith.AddiOp(constant, constant)
    with pytest.raises(FaultyOp, match=r"has a result that arith\.addi uses, which is in no block"):
        verify_module(module)
    forgotten.erase()
    verify_module(module)


def test_a_bare_exception_of_a_verifier_of_xdsl_names_its_operation() -> None:
    module = parsed(
        """
        func.func @main(%t: tensor<4xf32>) -> i1 {
          %r = "scf.while"(%t) ({
          ^bb0(%a: i1):
            "scf.condition"(%a, %a) : (i1, i1) -> ()
          }, {
          ^bb0(%b: i1):
            "scf.yield"(%b) : (i1) -> ()
          }) : (tensor<4xf32>) -> i1
          func.return %r : i1
        }
        """
    )
    found = find_invalid(module)
    assert found is not None
    op, message, _ = found
    assert op is not None
    assert (op.name, message) == ("scf.while", "Block arguments with wrong type, expected tensor<4xf32>, got i1")
