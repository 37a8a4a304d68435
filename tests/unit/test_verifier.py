# SPDX-License-Identifier: Apache-2.0
"""The verifier that remembers: it finds what xDSL's finds, also in a module that it has found valid before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects.builtin import Float64Type, FunctionType, ModuleOp, StringAttr, SymbolRefAttr, TensorType, f32
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.dialects.scf import YieldOp
from xdsl.ir import Block, Region
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from penstock.dialects import accel, graph
from penstock.dialects.context import make_context
from penstock.dialects.graph.base import ints
from penstock.dialects.machine import TargetOp, find_target
from penstock.dialects.verification import find_invalid
from penstock.dialects.verifier import Verifier
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.from_text import SourceText, parse_text

TEXT = """
func.func @main(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
  %a = graph.relu %x : tensor<2x3xf32>
  %b = graph.relu %a : tensor<2x3xf32>
  %y = graph.transpose %b perm [1, 0] : tensor<2x3xf32> -> tensor<3x2xf32>
  func.return %y : tensor<3x2xf32>
}
"""


def main_of(module: ModuleOp) -> FuncOp:
    function = module.body.block.first_op
    assert isinstance(function, FuncOp)
    return function


def parsed() -> ModuleOp:
    return parse_text(make_context(), SourceText("test.mlir", TEXT)).module


def change_type(module: ModuleOp) -> None:
    Rewriter.replace_value_with_new_type(main_of(module).body.block.args[0], TensorType(f32, [2, 4]))


def change_elements(module: ModuleOp) -> None:
    relu = list(main_of(module).body.block.ops)[1]
    Rewriter.replace_value_with_new_type(relu.results[0], TensorType(Float64Type(), [2, 3]))


def change_property(module: ModuleOp) -> None:
    list(main_of(module).body.block.ops)[2].properties["perm"] = ints([0, 1])


def drop_property(module: ModuleOp) -> None:
    del list(main_of(module).body.block.ops)[2].properties["perm"]


def add_property(module: ModuleOp) -> None:
    next(iter(main_of(module).body.block.ops)).properties["strange"] = StringAttr("x")


def swap_operand(module: ModuleOp) -> None:
    ops = list(main_of(module).body.block.ops)
    ops[1].operands[0] = ops[2].results[0]


def drop_terminator(module: ModuleOp) -> None:
    block = main_of(module).body.block
    last = block.last_op
    assert last is not None
    last.detach()
    last.erase()


def empty_block(module: ModuleOp) -> None:
    block = main_of(module).body.block
    for op in reversed(list(block.ops)):
        op.detach()
        op.erase()


def declare_other_results(module: ModuleOp) -> None:
    main_of(module).function_type = FunctionType.from_lists([TensorType(f32, [2, 3])], [f32])


def erase_operand(module: ModuleOp) -> None:
    op = next(iter(main_of(module).body.block.ops))
    op.detach()
    op.erase(safe_erase=False)


def wrong_parent(module: ModuleOp) -> None:
    op = next(iter(main_of(module).body.block.ops))
    op.parent = Block()


FAULTS = [
    change_type, change_elements, change_property, drop_property, add_property, swap_operand, drop_terminator,
    empty_block, erase_operand, wrong_parent, declare_other_results,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_module_that_was_valid_is_found(fault: Callable[[ModuleOp], None]) -> None:
    module, verifier = parsed(), Verifier()
    verifier.verify(module)
    verifier.verify(module)
    for _ in range(2):
        assert find_invalid(module, verifier) is None
    fault(module)
    assert find_invalid(module, verifier) is not None
    with pytest.raises((VerifyException, ValueError)) as expected:
        module.verify()
    with pytest.raises((VerifyException, ValueError)) as found:
        verifier.verify(module)
    assert type(found.value) is type(expected.value)
    if isinstance(expected.value, ValueError):
        assert str(found.value).split("Parent")[-1] == str(expected.value).split("Parent")[-1]


def forget_user(module: ModuleOp) -> None:
    value = next(iter(main_of(module).body.block.ops)).results[0]
    graph.ReluOp.create(operands=[value], result_types=[value.type])


def use_before_definition(module: ModuleOp) -> None:
    first, second, *_ = main_of(module).body.block.ops
    first.operands[0] = second.results[0]
    second.operands[0] = main_of(module).body.block.args[0]


def unknown_device(module: ModuleOp) -> None:
    main_of(module).attributes["device"] = SymbolRefAttr("elsewhere")


@pytest.mark.parametrize("fault", [forget_user, use_before_definition, unknown_device])
def test_a_fault_that_only_we_find_is_found_in_a_module_that_was_valid(fault: Callable[[ModuleOp], None]) -> None:
    module, verifier = parsed(), Verifier()
    Rewriter.insert_op(load_machine("gemmini-fp32"), InsertPoint.after(main_of(module)))
    assert find_invalid(module, verifier) is None
    fault(module)
    assert find_invalid(module, verifier) is not None


def test_a_use_of_what_is_in_another_function_is_found_in_a_module_that_was_valid() -> None:
    module, verifier = parsed(), Verifier()
    main, f = main_of(module), TensorType(f32, [2, 3])
    Rewriter.insert_op(other := FuncOp("other", ([f], []), visibility="private"), InsertPoint.after(main))
    other.body.block.add_op(ReturnOp())
    assert find_invalid(module, verifier) is None
    next(iter(main.body.block.ops)).operands[0] = other.body.block.args[0]
    assert find_invalid(module, verifier) is not None


def test_a_change_of_a_callee_is_found_in_its_caller() -> None:
    module, verifier = parsed(), Verifier()
    main, f = main_of(module), TensorType(f32, [2, 3])
    Rewriter.insert_op(callee := FuncOp.external("callee", [f], [f]), InsertPoint.before(main))
    Rewriter.insert_op(CallOp("callee", [main.body.block.args[0]], [f]), InsertPoint.at_start(main.body.block))
    assert find_invalid(module, verifier) is None
    callee.function_type = FunctionType.from_lists([f], [])
    assert find_invalid(module, verifier) is not None


def test_a_call_is_not_verified_again_where_its_callee_has_the_same_type(monkeypatch: pytest.MonkeyPatch) -> None:
    module, verifier = parsed(), Verifier()
    main, f = main_of(module), TensorType(f32, [2, 3])
    Rewriter.insert_op(callee := FuncOp.external("callee", [f], [f]), InsertPoint.before(main))
    Rewriter.insert_op(call := CallOp("callee", [main.body.block.args[0]], [f]), InsertPoint.at_start(main.body.block))
    assert find_invalid(module, verifier) is None
    seen: list[CallOp] = []
    monkeypatch.setattr(CallOp, "verify_", lambda op: seen.append(op))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    call.attributes["noted"] = StringAttr("x")
    assert find_invalid(module, verifier) is None
    assert seen == [call], "with other attributes it is another"
    del call.attributes["noted"]
    assert find_invalid(module, verifier) is None
    assert seen == [call]
    monkeypatch.undo()
    callee.function_type = FunctionType.from_lists([f], [])
    assert find_invalid(module, verifier) is not None


@pytest.mark.parametrize("name", ["callee", "other"])
def test_a_call_of_what_is_no_function_any_more_is_found(name: str) -> None:
    module, verifier = parsed(), Verifier()
    main, f = main_of(module), TensorType(f32, [2, 3])
    Rewriter.insert_op(callee := FuncOp.external("callee", [f], [f]), InsertPoint.before(main))
    Rewriter.insert_op(CallOp("callee", [main.body.block.args[0]], [f]), InsertPoint.at_start(main.body.block))
    assert find_invalid(module, verifier) is None
    if name == "callee":
        Rewriter.erase_op(callee)
    else:
        callee.properties["sym_name"] = StringAttr(name)
    assert find_invalid(module, verifier) is not None


def test_a_function_that_did_not_change_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module, verifier = parsed(), Verifier()
    assert find_invalid(module, verifier) is None
    seen: list[str] = []
    monkeypatch.setattr(FuncOp, "verify_", lambda op: seen.append(op.name))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    assert find_invalid(module, verifier) is None
    assert seen == []
    change_property(module)
    assert find_invalid(module, verifier) is not None


def test_an_invalid_op_stays_invalid_when_it_is_seen_again() -> None:
    module, verifier = parsed(), Verifier()
    change_property(module)
    for _ in range(2):
        with pytest.raises(VerifyException):
            verifier.verify(module)


def test_a_copy_of_what_is_valid_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module, verifier = parsed(), Verifier()
    verifier.verify(module)
    seen: list[str] = []
    before = graph.ReluOp.verify_

    def verify_(op: graph.ReluOp) -> None:
        seen.append(op.name)
        before(op)

    monkeypatch.setattr(graph.ReluOp, "verify_", verify_)
    copy = module.clone()
    verifier.verify(copy)
    assert seen == []
    Verifier().verify(copy)
    assert seen != []


BELOW = """
#id = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %r = scf.for %i = %zero to %one step %one iter_args(%c = %x) -> (tensor<4xf32>) {
    %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
        ins(%x : tensor<4xf32>) outs(%c : tensor<4xf32>) {
    ^bb0(%in: f32, %out: f32):
      %m = arith.addf %in, %in : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    scf.yield %y : tensor<4xf32>
  }
  func.return %r : tensor<4xf32>
}
"""


def change_block_argument(module: ModuleOp) -> None:
    generic = next(op for op in module.walk() if op.name == "linalg.generic")
    Rewriter.replace_value_with_new_type(generic.regions[0].block.args[1], Float64Type())


def change_what_is_yielded(module: ModuleOp) -> None:
    loop = next(op for op in module.walk() if op.name == "scf.for")
    last = loop.regions[0].block.last_op
    assert last is not None
    last.operands[0] = loop.operands[0]


def yield_elsewhere(module: ModuleOp) -> None:
    last = main_of(module).body.block.last_op
    assert last is not None
    Rewriter.replace_op(last, YieldOp(last.operands[0]))


def go_on_after_yield(module: ModuleOp) -> None:
    loop = next(op for op in module.walk() if op.name == "scf.for")
    block = loop.regions[0].block
    block.add_op(YieldOp(block.args[1]))


@pytest.mark.parametrize("fault", [change_block_argument, change_what_is_yielded, yield_elsewhere, go_on_after_yield])
def test_what_an_op_with_a_region_depends_on_is_looked_at(fault: Callable[[ModuleOp], None]) -> None:
    module, verifier = parse_text(make_context(), SourceText("test.mlir", BELOW)).module, Verifier()
    for _ in range(2):
        assert find_invalid(module, verifier) is None
    fault(module)
    assert find_invalid(module, verifier) is not None


def with_a_command() -> tuple[ModuleOp, TargetOp]:
    text = """
    func.func private @f(%x: memref<4x4xf32>, %y: memref<4x4xf32, "spad">) {
      %t = accel.dma %x to %y on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      accel.barrier
      func.return
    }"""
    module, machine = parse_text(make_context(), SourceText("test.mlir", text)).module, load_machine("gemmini-fp32")
    Rewriter.insert_op(machine, InsertPoint.at_start(module.body.block))
    return module, machine


def test_a_command_is_verified_against_the_machine_as_it_is_now() -> None:
    (module, machine), verifier = with_a_command(), Verifier()
    assert find_invalid(module, verifier) is None
    machine.dmas()["mvin"].properties["sym_name"] = StringAttr("renamed")
    assert find_invalid(module, verifier) is not None


def test_a_command_of_a_copy_is_verified_again_only_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    (module, _), verifier = with_a_command(), Verifier()
    assert find_invalid(module, verifier) is None
    seen: list[str] = []
    verify = accel.DmaOp.verify_
    monkeypatch.setattr(accel.DmaOp, "verify_", lambda op: (seen.append(op.name), verify(op)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    assert find_invalid(module.clone(), verifier) is None
    assert seen == []
    before, other = module.clone(), module.clone()
    target = find_target(other)
    assert target is not None
    target.detach()
    smaller = load_machine("gemmini-fp32", {"scope.spad.size": "64K"})
    Rewriter.insert_op(smaller, InsertPoint.at_start(other.body.block))
    assert find_invalid(other, verifier) is None
    assert seen == ["accel.dma"]
    # Nothing is known of the machine that commands were valid for, once it has changed.
    smaller.attributes["noted"] = StringAttr("x")
    assert find_invalid(before, verifier) is None
    assert seen == ["accel.dma", "accel.dma"]


def test_only_commands_are_verified_again_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    module, verifier = parsed(), Verifier()
    assert find_invalid(module, verifier) is None
    seen: list[str] = []
    monkeypatch.setattr(graph.ReluOp, "verify_", lambda op: seen.append(op.name))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    Rewriter.insert_op(load_machine("gemmini-fp32"), InsertPoint.at_start(module.body.block))
    assert find_invalid(module, verifier) is None
    assert seen == []


def test_attributes_of_one_function_do_not_concern_another(monkeypatch: pytest.MonkeyPatch) -> None:
    module, verifier = parsed(), Verifier()
    Rewriter.insert_op(other := FuncOp.external("other", [f32], [f32]), InsertPoint.after(main_of(module)))
    assert find_invalid(module, verifier) is None
    other.attributes["noted"] = StringAttr("x")
    seen: list[FuncOp] = []
    monkeypatch.setattr(FuncOp, "verify_", lambda op: seen.append(op))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert find_invalid(module, verifier) is None
    assert seen == [other]


def test_a_region_without_blocks_is_no_fault() -> None:
    type = ([TensorType(f32, [2])], [TensorType(f32, [2])])
    Verifier().verify(ModuleOp([FuncOp("outside", type, Region(), visibility="private")]))
