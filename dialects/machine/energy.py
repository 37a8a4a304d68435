# SPDX-License-Identifier: Apache-2.0
"""What a machine takes of energy: picojoules for what its commands do, and for every cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import ClassVar

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, DenseArrayBase, DictionaryAttr, IntegerType, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import irdl_op_definition, prop_def
from xdsl.traits import IsTerminator

from penstock.dialects.machine.part import MachinePart, PartFault, numbers_of

READ, WRITE, TRANSFER, ADD, MULTIPLY, SPECIAL, LEAKAGE = (
    "read",
    "write",
    "transfer",
    "add",
    "multiply",
    "special",
    "leakage",
)
ENERGY_TABLES = (READ, WRITE, TRANSFER, ADD, MULTIPLY, SPECIAL)
"""The tables of `machine.energy`."""
OPERATIONS = (ADD, MULTIPLY, SPECIAL)
"""Those by element types."""

Activity = Mapping[tuple[str, str], int]
"""By table and entry of `machine.energy`: bytes of a scope, bus or engine, operations on an element type, cycles."""

_WORDS = {READ: "bytes", WRITE: "bytes", TRANSFER: "bytes", LEAKAGE: "cycles"}
_MULTIPLYING = (arith.MulfOp, arith.MuliOp)
_SPECIAL = (arith.DivfOp, arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp)
_CASTS = (
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.ExtFOp,
    arith.TruncIOp,
    arith.TruncFOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
    arith.FPToSIOp,
    arith.FPToUIOp,
    arith.IndexCastOp,
    arith.BitcastOp,
)
_EXTENSIONS = (arith.ExtSIOp, arith.ExtUIOp, arith.ExtFOp)


@irdl_op_definition
class EnergyOp(MachinePart):
    """
    The energy that the machine takes, in picojoules: each number is an exact fraction, `[pJ, bytes]`,
    `[pJ, operations]` or `[pJ, cycles]`.

    A machine that has it has an entry for all that its commands can do: for `dram` and each scope in `read` and
    `write`, for each bus, and each engine without one, in `transfer`, and for each element type that an intrinsic
    computes on in `add`, `multiply` and `special`.
    """

    name = "machine.energy"
    KIND: ClassVar[str] = "energy"
    AT_LEAST_ZERO: ClassVar[tuple[str, ...]] = (LEAKAGE,)

    read = prop_def(DictionaryAttr)
    """[pJ, bytes] that are read, by scope and for `dram`."""
    write = prop_def(DictionaryAttr)
    """[pJ, bytes] that are written, by scope and for `dram`."""
    transfer = prop_def(DictionaryAttr)
    """[pJ, bytes] that a bus carries, by bus, or by engine where it has none."""
    add = prop_def(DictionaryAttr)
    """[pJ, operations] by the element type of the result: additions, and all other operations but those below."""
    multiply = prop_def(DictionaryAttr)
    """[pJ, operations] by the element type of the wider factor, before it is extended: a multiply-accumulate is a
    `multiply` of that and an `add` of the sum."""
    special = prop_def(DictionaryAttr)
    """[pJ, operations] by element type: divisions, exponentials and their like."""
    leakage = prop_def(DenseArrayBase.constr(i64))
    """[pJ, cycles] whatever happens."""

    assembly_format = (
        "`read` $read `write` $write `transfer` $transfer `add` $add `multiply` $multiply `special` $special"
        " `leakage` $leakage (`origin` $origin^)? attr-dict"
    )

    def table(self, name: str) -> DictionaryAttr:
        """One of `ENERGY_TABLES`."""
        found = self.properties[name]
        assert isinstance(found, DictionaryAttr)
        return found

    def picojoules(self, table: str, entry: str = "") -> Fraction:
        """What one byte, operation or cycle takes."""
        numerator, denominator = numbers_of(self.leakage if table == LEAKAGE else self.table(table).data[entry])
        return Fraction(numerator, denominator)

    def of(self, activity: Activity, cycles: int) -> dict[tuple[str, str], Fraction]:
        """The picojoules of all that is done in so many cycles, by table and entry, in the order of the machine."""
        done = {**activity, (LEAKAGE, ""): cycles}
        entries = [(table, entry) for table in ENERGY_TABLES for entry in self.table(table).data]
        return {what: done[what] * self.picojoules(*what) for what in (*entries, (LEAKAGE, "")) if what in done}

    def own_faults(self) -> Iterator[PartFault]:
        # That `leakage` is not negative is said of every number that is a property.
        pairs: list[tuple[str, tuple[str, ...], Attribute]] = [(LEAKAGE, (), self.leakage)]
        for table in ENERGY_TABLES:
            pairs += [(table, (entry,), attr) for entry, attr in self.table(table).data.items()]
        for key, inside, attr in pairs:
            label = ".".join((key, *inside))
            numbers = numbers_of(attr)
            if len(numbers) != 2:
                yield PartFault(
                    key, f"{label} must be [pJ, {_WORDS.get(key, 'operations')}], two whole numbers", (), inside
                )
            elif numbers[1] < 1 or (numbers[0] < 0 and key != LEAKAGE):
                message = f"{label} must be no less than 0 pJ in at least 1, but is {list(numbers)}"
                yield PartFault(key, message, (), inside)


def operations_of(block: Block) -> Activity:
    """
    The operations of one point of a structured op's body, by the table of `machine.energy` that they are in and by
    element type. Casts are wires, and constants are there.
    """
    found = Counter[tuple[str, str]]()
    for op in block.ops:
        if op.has_trait(IsTerminator) or isinstance(op, (arith.ConstantOp, *_CASTS)):
            continue
        if isinstance(op, math.FmaOp):
            found[MULTIPLY, _factor_type(op.a, op.b)] += 1
            found[ADD, _name(op.result.type)] += 1
        elif isinstance(op, _MULTIPLYING):
            found[MULTIPLY, _factor_type(op.lhs, op.rhs)] += 1
        elif isinstance(op, _SPECIAL) or op.name.startswith("math."):
            found[SPECIAL, _result_type(op)] += 1
        else:
            found[ADD, _result_type(op)] += 1
    return found


def _result_type(op: Operation) -> str:
    """The element type that an operation computes on: of a comparison that of what is compared."""
    typed = op.operands if isinstance(op, arith.CmpiOp | arith.CmpfOp) else op.results
    return _name(typed[0].type)


def _factor_type(*factors: SSAValue) -> str:
    """The wider element type of two factors, before they are extended."""
    types = [_before_extension(each) for each in factors]
    return _name(max(types, key=lambda type: type.bitwidth if isinstance(type, IntegerType | AnyFloat) else 0))


def _before_extension(value: SSAValue) -> Attribute:
    while isinstance(value.owner, _EXTENSIONS):
        value = value.owner.operands[0]
    return value.type


def _name(type: Attribute) -> str:
    return str(type)
