# SPDX-License-Identifier: Apache-2.0
"""
Tensor expressions, the behaviour of an intrinsic as a machine file spells it, read into one `linalg.generic`.

    acc[m,n] += a[m,k] * b[k,n]
    dst[i,j] = max(src[i,j], 0)
    acc[m,n] += cast(i32, inp[m,k]) * cast(i32, wgt[n,k])
    y[n] = x[n] + imm
    y[m] = max(y[m], x[m,n])

They are assignments of the kernel language, with all of its scalar functions (`max`, `exp`, `shr`, `cast(type, x)`,
...), and `imm`, the scalar that travels in the instruction. Indices are affine in the dims. The dims on the left are
the parallel loops, in that order; the others, in order of appearance, are reductions: sums, which `+=` writes, or what
the right side combines with what the left side holds, as the last of these does. The body is the canonical one of the
tensor level: for `+=` it adds the right side to the operand's element, for `=` it yields the right side.

A number takes the type of what it stands beside; everything else must agree in type, and `cast` converts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    UNKNOWN_LOC,
    AffineMapAttr,
    AnyFloat,
    IntegerType,
    MemRefType,
    NoneAttr,
    StringAttr,
)
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, Region
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from penstock.dialects.diagnostics import ExpressionFault, did_you_mean
from penstock.dialects.graph.base import is_unsigned
from penstock.dialects.machine import DRAM, IMMEDIATE, layout_of
from penstock.lowering.from_kernel.affine import affine_of
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Numbers
from penstock.lowering.from_kernel.parser import SyntaxFault, parse_assignment
from penstock.lowering.from_kernel.printer import print_expression
from penstock.lowering.from_kernel.scalars import Operand, Scalars, element_called
from penstock.lowering.from_kernel.syntax import Access, Assignment, Binary, Binding, Call, Name, Node, Position, Unary
from penstock.passes.analysis.reductions import combiners
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import signless

EXAMPLE = "an expression reads like: acc[m,n] += a[m,k] * b[k,n]"


@dataclass(frozen=True)
class OperandDecl:
    """An operand as a machine file declares it: its name, scope ("dram" = off chip), element type and strides."""

    name: str
    scope: str
    dtype: Attribute
    strides: str


@dataclass(frozen=True)
class Behaviour:
    """What an expression became: the region of a `machine.intrinsic` and the names in it."""

    region: Region
    operands: tuple[str, ...]
    """The names of the region's arguments; the written one is last, and `imm`, if used, before it."""
    dims: tuple[str, ...]
    """The names of the generic's loops, in their order."""


def operand_type(name: str) -> IntegerType | AnyFloat | None:
    """The element type of an operand, which may be unsigned (`ui8`), or None if there is none of that name."""
    return None if name == "bool" else element_called(name)


def scalar_type(name: str) -> IntegerType | AnyFloat | None:
    """The element type called `name` in a machine file (`i8`, `f32`, ...), or None if there is none."""
    found = element_called(name)
    return None if name == "bool" or (found is not None and is_unsigned(found)) else found


def build_behaviour(text: str, operands: Sequence[OperandDecl]) -> Behaviour:
    """
    The region for `text` over `operands`, the last of which must be the one on the left.

    The memrefs have one dynamic dim per index, the scope and the strides of their declaration. Raises
    ExpressionFault, with the column, for what does not parse or does not fit the operands.
    """
    try:
        return _BehaviourBuilder(text, operands).build()
    except Fault as fault:
        raise ExpressionFault(fault.message, min(fault.at.column - 1, len(text)), fault.notes) from None


_NUMBERS: Numbers = {}
"""A machine file has no sizes."""


@lru_cache(maxsize=256)
def _parse(text: str) -> Assignment:
    """The syntax tree of a behaviour, which is not changed: machines have many of them in common."""
    try:
        # A line break ends a statement of a kernel; in a string of a machine file it is a space.
        return parse_assignment(text.replace("\n", " "))
    except SyntaxFault as fault:
        raise Fault(fault.message.replace("the text ends", "the expression ends"), fault.at, (EXAMPLE,)) from None


class _BehaviourBuilder:
    def __init__(self, text: str, operands: Sequence[OperandDecl]):
        self.text = text
        self.operands = operands
        self.assignment = _parse(text)
        self.accumulates = self.assignment.operator == "+="
        self.dims: list[str] = []
        self.indices: dict[str, tuple[AffineExpr, ...]] = {}
        self.parts: dict[Node, str] = {}
        """What is read by the expression, and the name of the operand that it is."""
        self.uses_immediate = False

    def build(self) -> Behaviour:
        self._read_target()
        parallel = len(self.dims)
        self._read_references(self.assignment.value)
        self._check_dims(parallel)
        *inputs, output = self.operands
        names = [decl.name for decl in inputs]
        types: list[Attribute] = [self._memref(decl) for decl in self.operands]
        maps = [AffineMap(len(self.dims), 0, self.indices[decl.name]) for decl in self.operands]
        scalars = [signless(decl.dtype) for decl in self.operands]
        if self.uses_immediate:
            names.append(IMMEDIATE)
            types.insert(-1, signless(output.dtype))
            scalars.insert(-1, signless(output.dtype))
            maps.insert(-1, AffineMap(len(self.dims), 0, ()))
        names.append(output.name)

        block = Block(arg_types=types)
        for name, arg in zip(names, block.args, strict=True):
            arg.name_hint = name
        iterators = [IteratorType.PARALLEL] * parallel
        iterators += [IteratorType.REDUCTION] * (len(self.dims) - parallel)
        generic = GenericOp(
            block.args[:-1],
            block.args[-1:],
            self._body(names, scalars),
            [AffineMapAttr(each) for each in maps],
            [IteratorTypeAttr(each) for each in iterators],
            doc=StringAttr(self.text),
        )
        if len(self.dims) > parallel and not combiners(generic):
            raise self._no_reduction(self.dims[parallel])
        block.add_op(generic)
        return Behaviour(Region(block), tuple(names), tuple(self.dims))

    def _memref(self, decl: OperandDecl) -> MemRefType:
        rank = len(self.indices[decl.name])
        space = NoneAttr() if decl.scope == DRAM else StringAttr(decl.scope)
        return MemRefType(signless(decl.dtype), [DYNAMIC_INDEX] * rank, layout_of(decl.strides, rank), space)

    def _body(self, names: Sequence[str], scalars: Sequence[Attribute]) -> Region:
        block = Block(arg_types=scalars)
        for arg in block.args[:-1]:
            arg.name_hint = "in"
        out = block.args[-1]
        out.name_hint = "out"
        body, value = Body(block, UNKNOWN_LOC), self.assignment.value
        declared = {decl.name: decl.dtype for decl in self.operands}
        elements = {
            name: Operand(declared.get(name, arg.type), arg) for name, arg in zip(names, block.args, strict=True)
        }
        expression = Scalars({part: elements[name] for part, name in self.parts.items()}, _NUMBERS, types=scalar_type)
        found = expression.type_of(value)
        if found is not None and found != out.type:
            message = f"the right side is {found}, but the left {out.type}"
            raise Fault(message, value, (f"cast({out.type}, ...) converts it",))
        computed = expression.emit(body, value, out.type)
        body.end(body.add(out, computed) if self.accumulates else computed)
        return Region(block)

    def _read_target(self) -> None:
        """The left side: the last operand, indexed by distinct dims."""
        output, target = self.operands[-1].name, self.assignment.target
        name = target.name if isinstance(target, Name) else target.tensor
        if name != output:
            raise Fault(
                f'the left side is "{name}", but the last operand is "{output}"',
                target,
                ("the operand that is written is declared last",),
            )
        if isinstance(target, Name):
            raise Fault(f'"{name}" has no indices', target, (EXAMPLE,))
        for index in target.indices:
            if not isinstance(index, Name):
                raise Fault("an index on the left must be a dim", index)
            if index.name in self.dims:
                raise Fault(f'"{index.name}" is on the left twice', index)
            self._dim(index)
        self.indices[output] = tuple(AffineDimExpr(place) for place in range(len(self.dims)))

    def _read_references(self, node: Node) -> None:
        """Find the dims, the maps of the operands, and the immediate, from left to right."""
        match node:
            case Access():
                self._read_reference(node)
            case Name():
                if node.name != IMMEDIATE:
                    raise Fault(f'"{node.name}" is neither indexed nor "{IMMEDIATE}"', node)
                self.uses_immediate = True
                self.parts[node] = IMMEDIATE
            case Call():
                for part in node.arguments[1:] if node.function == "cast" else node.arguments:
                    self._read_references(part)
            case Binary():
                self._read_references(node.left)
                self._read_references(node.right)
            case Unary():
                self._read_references(node.operand)
            case Binding():
                raise Fault("a machine's expression has no range of an index", node)
            case _:
                pass

    def _read_reference(self, node: Access) -> None:
        declared = [decl.name for decl in self.operands]
        if node.tensor not in declared:
            note = did_you_mean(node.tensor, declared) or f"the operands are {', '.join(declared)}"
            raise Fault(f'unknown operand "{node.tensor}"', node, (note,))
        if node.otherwise is not None:
            raise Fault("an intrinsic reads nothing out of bounds", node.otherwise)
        indices = tuple(affine_of(index, self._dim, _NUMBERS) for index in node.indices)
        if self.indices.setdefault(node.tensor, indices) != indices:
            raise Fault(f'"{node.tensor}" is indexed in two ways', node)
        self.parts[node] = node.tensor

    def _dim(self, name: Name) -> AffineExpr:
        if name.name not in self.dims:
            self.dims.append(name.name)
        return AffineDimExpr(self.dims.index(name.name))

    def _check_dims(self, parallel: int) -> None:
        for decl in self.operands:
            if decl.name not in self.indices:
                raise Fault(f'operand "{decl.name}" is not used', Position(1, 1))
        alone = {expr for exprs in self.indices.values() for expr in exprs}
        for place, dim in enumerate(self.dims):
            if place >= parallel and not self.accumulates and self.operands[-1].name not in self.parts.values():
                raise self._no_reduction(dim)
            if AffineDimExpr(place) not in alone:
                raise Fault(f'"{dim}" indexes no operand alone, so its extent is unknown', Position(1, 1))

    def _no_reduction(self, dim: str) -> Fault:
        held = print_expression(self.assignment.target)
        return Fault(
            f'"{dim}" is reduced, as it is not on the left, but nothing combines what it ranges over',
            Position(1, 1 + self.text.index("=")),
            (f"a sum is written +=, a maximum {held} = max({held}, ...)",),
        )
