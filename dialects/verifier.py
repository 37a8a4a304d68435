"""xDSL's verification of a module, pass after pass, without verifying again what looks as it did."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from operator import is_
from typing import TypeAlias

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, ErasedSSAValue, Operation
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.machine import TargetOp

Key: TypeAlias = Hashable
Contents: TypeAlias = Sequence[object]


def _verifies_alone(op: Operation) -> bool:
    """
    Whether the class of an op says that its validity is a matter of its types, properties and attributes alone.

    Such an op has neither regions nor successors; who defines its operands, who uses its results and where it stands
    is no affair of its verifier.
    """
    return bool(getattr(type(op), "VERIFIES_ALONE", False))


class Verifier:
    """
    Verifies modules that differ little, such as one after each pass.

    What `Operation.verify` does for the module and all in it, in the same order. An op whose class has
    `VERIFIES_ALONE` is first compared with those that were found valid: one of the same class with the very same
    attributes, as objects, which never change, is valid as well. After a pass that touches few ops, or copies them,
    verification takes the time of a look. A function that is made of the very same objects as when it was last found
    valid, in a module whose functions have the same attributes and that is otherwise the same, is not verified again;
    neither is a machine that is made of the very same objects.
    """

    def __init__(self) -> None:
        self._contents: dict[Operation, Contents] = {}
        self._surroundings: Contents = ()
        self._valid: dict[Key, tuple[Attribute, ...]] = {}
        """The attributes are kept, so that no other gets the identity of one."""

    def check(self, module: Operation) -> Iterator[Collection[Operation]]:
        """
        Verify what changed since the last module that was found valid, and raise what `module.verify()` raises.

        Yields the functions and machines that did not change; resumed, it takes the module to be valid.
        """
        ops = [op for region in module.regions for block in region.blocks for op in block.ops]
        contents: dict[Operation, Contents] = {op: [*_contents(op)] for op in ops}
        # What a function is verified against outside it: its callees, the machine.
        around = [each for op in ops for each in (_own(op) if isinstance(op, FuncOp) else contents[op])]
        surroundings = [*_own(module), *around]
        alone = FuncOp | TargetOp if _are_same(surroundings, self._surroundings) else TargetOp
        valid = {op for op in ops if isinstance(op, alone) and _are_same(contents[op], self._contents.get(op, ()))}
        self.verify(module, valid)
        yield valid
        self._contents, self._surroundings = contents, surroundings

    def verify(self, op: Operation, valid: Collection[Operation] = ()) -> None:
        """Raise what `op.verify()` raises; what `valid` has is not looked into."""
        for region in op.regions:
            for block in region.blocks:
                self._verify_block(block, valid)
                if block.parent is not region:
                    raise ValueError("Parent pointer of block does not refer to containing region")
        op.verify(verify_nested_ops=False)

    def _verify_block(self, block: Block, valid: Collection[Operation] = ()) -> None:
        last = block.last_op
        for op in block.ops:
            if op.parent is not block:
                raise ValueError("Parent pointer of operation does not refer to containing region")
            if op in valid:
                continue
            if op is last or not _verifies_alone(op):
                self.verify(op)
            else:
                self._verify_alone(op)
        if last is None:
            _verify_empty(block)

    def _verify_alone(self, op: Operation) -> None:
        # What `Operation.verify` asks of any op that is not the last of its block, and of one without regions.
        operands = op.operands
        for operand in operands:
            if isinstance(operand, ErasedSSAValue):
                raise ValueError("Erased SSA value is used by the operation")
        seen = (
            *[operand.type for operand in operands],
            *[result.type for result in op.results],
            *op.properties.values(),
            *op.attributes.values(),
        )
        key = (
            type(op),
            len(operands),
            len(op.regions),
            len(op.successors),
            *op.properties,
            None,
            *op.attributes,
            *map(id, seen),
        )
        if key not in self._valid:
            self.verify(op)
            self._valid[key] = seen


def _are_same(one: Contents, other: Contents) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _own(op: Operation) -> Iterator[object]:
    """The objects, never changed in place, that an op without its regions is made of, and where it is used."""
    yield op
    yield op.parent
    yield from op.operands
    for result in op.results:
        yield result
        yield result.type
        # A new use, if only by an op that is in no block, becomes the first.
        yield result.first_use
    yield from op.successors
    yield from op.properties
    yield from op.properties.values()
    yield from op.attributes
    yield from op.attributes.values()


def _contents(op: Operation) -> Iterator[object]:
    """The objects that an op and all in it is made of."""
    yield from _own(op)
    for region in op.regions:
        yield region
        for block in region.blocks:
            yield block
            yield block.parent
            for arg in block.args:
                yield arg
                yield arg.type
            for inner in block.ops:
                yield from _contents(inner)
        yield None


def _verify_empty(block: Block) -> None:
    region = block.parent
    parent = None if region is None else region.parent
    if region is None or parent is None or len(region.blocks) != 1 or parent.has_trait(NoTerminator):
        return
    raise VerifyException(
        f"Operation {parent.name} contains empty block in single-block region that expects at least a terminator"
    )
