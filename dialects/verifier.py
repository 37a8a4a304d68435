"""xDSL's verification of a module, pass after pass, without verifying again what looks as it did."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from xdsl.ir import Attribute, Block, ErasedSSAValue, Operation
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

Key: TypeAlias = Hashable


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
    verification takes the time of a look.
    """

    def __init__(self) -> None:
        self._valid: dict[Key, tuple[Attribute, ...]] = {}
        """The attributes are kept, so that no other gets the identity of one."""

    def verify(self, op: Operation) -> None:
        """Raise what `op.verify()` raises."""
        for region in op.regions:
            for block in region.blocks:
                self._verify_block(block)
                if block.parent is not region:
                    raise ValueError("Parent pointer of block does not refer to containing region")
        op.verify(verify_nested_ops=False)

    def _verify_block(self, block: Block) -> None:
        last = block.last_op
        for op in block.ops:
            if op.parent is not block:
                raise ValueError("Parent pointer of operation does not refer to containing region")
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


def _verify_empty(block: Block) -> None:
    region = block.parent
    parent = None if region is None else region.parent
    if region is None or parent is None or len(region.blocks) != 1 or parent.has_trait(NoTerminator):
        return
    raise VerifyException(
        f"Operation {parent.name} contains empty block in single-block region that expects at least a terminator"
    )
