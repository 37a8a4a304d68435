# SPDX-License-Identifier: Apache-2.0
"""xDSL's verification of a module, pass after pass, without verifying again what looks as it did."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from operator import is_
from typing import TypeAlias

from xdsl.dialects.builtin import StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, ErasedSSAValue, IRNode, Operation, SSAValue
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

_MACHINE = "machine.target"
"""An op whose dialect is slow to import, and most modules have none."""

Key: TypeAlias = tuple[type[Operation], *tuple[Hashable, ...]]
Contents: TypeAlias = Sequence[object]


class _Depends(Enum):
    """On what the validity of an op depends, beside the machine of the module."""

    ANYTHING = auto()
    ALONE = auto()
    """
    Its types, properties and attributes; with regions, also the types of the arguments and of what is yielded. That
    nothing in a function uses values of another is for the check of dominance, see `verification`.
    """
    TERMINATOR = auto()
    """The same, and it stands last in the only block of a region of an op of a certain class."""


_ALONE_DIALECTS = frozenset(
    ("xdsl.dialects.arith", "xdsl.dialects.math", "penstock.dialects.accel", "penstock.dialects.mem")
)
_ALONE_OF_XDSL = frozenset(
    "affine.apply func.func linalg.generic memref.alloc memref.cast memref.collapse_shape memref.copy memref.dealloc"
    " memref.expand_shape memref.load memref.reinterpret_cast memref.store memref.subview scf.for tensor.cast"
    " tensor.collapse_shape tensor.dim tensor.empty tensor.expand_shape tensor.extract tensor.extract_slice"
    " tensor.insert tensor.insert_slice tensor.pad".split()
)
_TERMINATORS_OF_XDSL = frozenset(("func.return", "linalg.yield", "scf.yield", "tensor.yield"))
_ASK_THE_MACHINE = ("penstock.dialects.accel", FuncOp.__module__)
"""The dialects of ops whose validity depends on the machine, beside those that are verified whenever it changes."""


@cache
def _depends(op_class: type[Operation]) -> _Depends:
    """
    A class may say by `VERIFIES_ALONE` that its verifier does not ask what defines the operands, what uses the results
    or where the op stands; it then has neither regions nor successors. Other classes are listed here.
    """
    if getattr(op_class, "VERIFIES_ALONE", False) or op_class.__module__ in _ALONE_DIALECTS:
        return _Depends.ALONE
    if not op_class.__module__.startswith("xdsl.dialects."):
        return _Depends.ANYTHING
    if op_class.name in _ALONE_OF_XDSL:
        return _Depends.ALONE
    return _Depends.TERMINATOR if op_class.name in _TERMINATORS_OF_XDSL else _Depends.ANYTHING


class Verifier:
    """
    Verifies modules that differ little, such as one after each pass.

    What `Operation.verify` does for the module and all in it, in the same order. An op that depends on little is first
    compared with those that were found valid: one of the same class with equal attributes is valid as well, commands
    as long as the machine is the same; a call in a function of the module also depends on the type of its callee, and
    a return on that of its function. After a pass that touches few ops, or copies them, verification takes the time of
    a look. A function that is made of the very
    same objects as when it was last found valid, in a module whose functions have the same properties and that is
    otherwise the same, is not verified again; neither is a machine that is made of the very same objects.
    """

    def __init__(self) -> None:
        self._contents: dict[Operation, Contents] = {}
        self._surroundings: Contents = ()
        self._valid: set[Key] = set()
        self._numbers: dict[Attribute, int] = {}
        """What stands for an attribute in a key."""
        self._number_of: dict[int, tuple[int, Attribute]] = {}
        """The same by identity. Attributes are kept, so that no other gets the identity of one."""
        self._verified: list[Operation] = []
        """The ops that were verified since the last module that was found valid, and the keys of some of them."""
        self._new_keys: list[Key] = []
        self._module: Operation | None = None
        self._symbols: dict[str, Operation] = {}
        """What names stand for in the module that is checked."""

    def check(self, module: Operation) -> Iterator[tuple[Collection[Operation], Sequence[Operation]]]:
        """
        Verify what changed since the last module that was found valid, and raise what `module.verify()` raises.

        Yields the functions and machines that did not change, and the ops that are new in the others: unlike any that
        was found valid. Resumed, it takes the module to be valid.
        """
        # The last module was found invalid, or our rules were not asked.
        self._valid.difference_update(self._new_keys)
        ops = [op for region in module.regions for block in region.blocks for op in block.ops]
        self._module, self._symbols = module, {}
        for op in ops:
            if isinstance(name := op.get_attr_or_prop("sym_name"), StringAttr):
                self._symbols.setdefault(name.data, op)
        contents: dict[Operation, Contents] = {op: _contents(op) for op in ops}
        # What a function is verified against outside it: its callees, the machine.
        around = [each for op in ops for each in (_declared(op) if isinstance(op, FuncOp) else contents[op])]
        surroundings = [*_own(module), *around]
        machines = [op for op in ops if op.name == _MACHINE]
        if not self._are_machines(machines, contents):
            self._valid = {key for key in self._valid if key[0].__module__ not in _ASK_THE_MACHINE}
        alone = (_MACHINE, FuncOp.name) if _are_same(surroundings, self._surroundings) else (_MACHINE,)
        valid = {op for op in ops if op.name in alone and _are_same(contents[op], self._contents.get(op, ()))}
        self._verified, self._new_keys = [], []
        try:
            self.verify(module, valid)
        finally:
            self._module, self._symbols = None, {}
        yield valid, self._verified
        self._contents, self._surroundings = contents, surroundings
        self._verified, self._new_keys = [], []

    def _are_machines(self, machines: Sequence[Operation], contents: Mapping[Operation, Contents]) -> bool:
        """Whether the machines of a module are those of the last one, or equal to them, as copies are."""
        before = [op for op in self._contents if op.name == _MACHINE]
        return len(before) == len(machines) and all(
            _are_same(contents[new], self._contents[old])
            or (_are_same(_contents(old), self._contents[old]) and _are_equal(new, old))
            for old, new in zip(before, machines, strict=True)
        )

    def verify(self, op: Operation, valid: Collection[Operation] = ()) -> None:
        """Raise what `op.verify()` raises; what `valid` has is not looked into."""
        for region in op.regions:
            for block in region.blocks:
                self._verify_block(block, valid)
                if block.parent is not region:
                    raise ValueError("Parent pointer of block does not refer to containing region")
        if (key := self._key(op)) is not None and key in self._valid:
            return
        op.verify(verify_nested_ops=False)
        self._verified.append(op)
        if key is not None:
            self._new_keys.append(key)
            self._valid.add(key)

    def _verify_block(self, block: Block, valid: Collection[Operation] = ()) -> None:
        for op in block.ops:
            if op.parent is not block:
                raise ValueError("Parent pointer of operation does not refer to containing region")
            if op not in valid:
                self.verify(op)
        if block.is_empty:
            _verify_empty(block)

    def _key(self, op: Operation) -> Key | None:
        """By what an op is recognised; None for one that has to be verified."""
        depends, block = _depends(type(op)), op.parent
        is_last = op.next_op is None
        function = self._type_of_function(op) if isinstance(op, CallOp | ReturnOp) else None
        if depends is _Depends.ANYTHING and function is None:
            return None
        if block is None or is_last != (depends is _Depends.TERMINATOR):
            return None
        parent: object = None
        if is_last:
            if block.parent is None or len(block.parent.blocks) != 1:
                return None
            parent = type(block.parent.parent)
        key: list[Hashable] = [function, parent, len(op.successors), *op.properties, None, *op.attributes]
        for operand in op.operands:
            if isinstance(operand, ErasedSSAValue):
                return None
            key.append(self._number(operand.type))
        key.append(None)
        key += [self._number(result.type) for result in op.results]
        key += [self._number(attr) for held in (op.properties, op.attributes) for attr in held.values()]
        for region in op.regions:
            key.append(len(region.blocks))
            for inner in region.blocks:
                key += [self._number(arg.type) for arg in inner.args]
                key.append(None)
                if (last := inner.last_op) is not None:
                    key += [type(last), *(self._number(value.type) for value in last.operands)]
        return (type(op), *key)

    def _type_of_function(self, op: CallOp | ReturnOp) -> int | None:
        """
        Of a return that of its function, and of a call in the body of a function of the module that of its callee, of
        which they depend on no more; None of others.
        """
        caller, name = op.parent_op(), op.properties.get("callee")
        if isinstance(op, ReturnOp):
            return self._number(caller.function_type) if isinstance(caller, FuncOp) else None
        if self._module is None or not isinstance(caller, FuncOp) or caller.parent_op() is not self._module:
            return None
        if not isinstance(name, SymbolRefAttr) or name.nested_references.data:
            return None
        callee = self._symbols.get(name.root_reference.data)
        return self._number(callee.function_type) if isinstance(callee, FuncOp) else None

    def _number(self, attr: Attribute) -> int:
        if (known := self._number_of.get(id(attr))) is None:
            known = self._numbers.setdefault(attr, len(self._numbers)), attr
            self._number_of[id(attr)] = known
        return known[0]


def _are_same(one: Contents, other: Contents) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _are_equal(one: Operation, other: Operation) -> bool:
    """Whether two ops are alike, wherever they stand."""
    around: dict[IRNode | SSAValue, IRNode | SSAValue] = {}
    if one.parent is not None and other.parent is not None:
        around[one.parent] = other.parent
    return one.is_structurally_equivalent(other, around)


def _own(op: Operation) -> list[object]:
    """The objects, never changed in place, that an op without its regions is made of, and where it is used."""
    properties, attributes = op.properties, op.attributes
    found: list[object] = [op, op.parent, *op.operands, *op.successors, *properties, *properties.values()]
    if attributes:
        found += [*attributes, *attributes.values()]
    for result in op.results:
        # A new use, if only by an op that is in no block, becomes the first.
        found += (result, result.type, result.first_use)
    return found


def _declared(function: FuncOp) -> list[object]:
    """What others are verified against of a function: not its attributes, nor its body."""
    return [function, function.parent, *function.properties, *function.properties.values()]


def _contents(op: Operation) -> list[object]:
    """The objects that an op and all in it is made of."""
    found = _own(op)
    for region in op.regions:
        found.append(region)
        for block in region.blocks:
            found += (block, block.parent)
            for arg in block.args:
                found += (arg, arg.type)
            for inner in block.ops:
                found += _contents(inner)
        found.append(None)
    return found


def _verify_empty(block: Block) -> None:
    region = block.parent
    parent = None if region is None else region.parent
    if region is None or parent is None or len(region.blocks) != 1 or parent.has_trait(NoTerminator):
        return
    raise VerifyException(
        f"Operation {parent.name} contains empty block in single-block region that expects at least a terminator"
    )
