# SPDX-License-Identifier: Apache-2.0
"""The statements of a kernel, lowered in their order to ops on tensors."""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.machine import DRAM
from penstock.dialects.upstream.tensor import EmptyOp
from penstock.lowering.from_kernel.branches import Branches, as_read
from penstock.lowering.from_kernel.copies import Copies, keep_in_scope, loaded, require_local, stored, tensor_for_parts
from penstock.lowering.from_kernel.elements import Destination, Reads
from penstock.lowering.from_kernel.expressions import Expressions
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.index_splits import split_indices
from penstock.lowering.from_kernel.loops import Loops, Store
from penstock.lowering.from_kernel.recurrences import Recurrences
from penstock.lowering.from_kernel.scalars import element_called
from penstock.lowering.from_kernel.sizes import shape_of_declaration
from penstock.lowering.from_kernel.symbols import Symbols, Tensor
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Binary,
    Block,
    Call,
    CallStatement,
    Declaration,
    Declarator,
    Expression,
    If,
    Loop,
    Name,
    Node,
    Number,
    Statement,
    walk,
)
from penstock.lowering.from_kernel.targets import StoreTarget, StoreTargets
from penstock.passes.schedule.tile_nest import DimRange
from penstock.passes.shapes import loops, signless


class Statements:
    """Lowers the statements of one kernel."""

    def __init__(self, expressions: Expressions):
        self._expressions = expressions
        self._builder = expressions.builder
        self._symbols: Symbols = expressions.symbols
        self._accesses = expressions.accesses
        self._copies = Copies(expressions)
        self._targets = StoreTargets(expressions)
        self._branches = Branches(expressions.symbols, self.run)
        self._loops = Loops(expressions, self._branches, self.run)
        self._recurrences = Recurrences(expressions, self.run)

    def run(self, block: Block) -> None:
        """Lower statements in their order. Raises Fault."""
        for statement in block.statements:
            self._builder.location = self._expressions.location(statement.at)
            self._run(statement)

    def _run(self, statement: Statement) -> None:
        match statement:
            case Declaration():
                self._declare(statement)
            case Assignment():
                self._assign(statement.target, statement.operator, statement.value)
            case CallStatement():
                target, value = stored(statement.call)
                self._copy(target, value, statement.call)
            case Loop():
                self._loops.run(statement)
            case If():
                self._branches.run(statement)

    # declarations

    def declare(self, declared: Declarator, kind: str, value: SSAValue | None = None) -> Tensor:
        """Add a tensor as it is declared. Raises Fault for an unknown type or scope, a name that is taken, a size."""
        element = element_called(declared.element)
        if element is None:
            note = did_you_mean(declared.element, ("f16", "bf16", "f32", "f64", "i8", "i32", "i64", "ui8", "bool"))
            notes = [note or "element types are f16 bf16 f32 f64, i8 to i64, ui8 to ui64, and bool"]
            raise Fault(f'unknown element type "{declared.element}"', declared, notes)
        require_local(declared, kind)
        shape = shape_of_declaration(declared, self._symbols.numbers)
        tensor = Tensor(declared.name, kind, element, shape, declared, value, scope=declared.scope)
        self._symbols.declare(tensor, declared)
        return tensor

    def _declare(self, statement: Declaration) -> None:
        if statement.value is None:
            self.declare(statement.declared, "local")
            return
        value = loaded(statement.value) or statement.value
        reads_itself = [each for each in walk(value) if isinstance(each, Name) and each.name == statement.declared.name]
        tensor = self.declare(statement.declared, "local")
        if reads_itself:
            raise Fault(f'"{tensor.name}" is read before anything is stored to it', reads_itself[0])
        self._builder.name = tensor.name
        self._targets.require_shape(value, tensor.shape, tensor.name)
        whole = StoreTarget(tensor, Expressions.tile_space(tensor.shape), None, tuple(loops(tensor.rank)), tensor.shape)
        if value is statement.value:
            self._keep(tensor, self._computed(whole, value, tensor.element)[0])
        else:
            self._builder.location = self._expressions.location(statement.value.at)
            self._copy_whole(whole, tensor, self._copies.source(value, tensor.shape, tensor.element)[0])

    def _keep(self, tensor: Tensor, value: SSAValue) -> None:
        tensor.value = value
        keep_in_scope(tensor, self._expressions)

    # assignments

    def _assign(self, target: Name | Access, operator: str, value: Expression) -> None:
        if (read := loaded(value)) is not None:
            if operator != "=":
                raise Fault("load stands alone: x = load(y[i, :])", value)
            self._copy(target, read, value)
            return
        name = target.name if isinstance(target, Name) else target.tensor
        self._builder.name = name.replace(".", "_")
        if (recurrence := self._recurrences.find(target, value)) is not None and operator == "=":
            self._recurrences.lower(recurrence, value)
            return
        found = self._targets.find(target, name, value)
        if operator == "+=":
            self._add(found, target, value)
        elif (tile := self._tile(found, value)) is not None and found.tensor is not None:
            self._store(found, found.tensor, tile, target)
        elif found.tensor is None:
            computed, element = self._computed(found, value, None)
            shape = tuple(each.size for each in found.space.values())
            self._symbols.declare(Tensor(name, "local", element, shape, target, computed), target)
        else:
            self._store(found, found.tensor, self._computed(found, value, found.tensor.element)[0], target)

    def _tile(self, target: StoreTarget, value: Expression) -> SSAValue | None:
        """The local tile that is stored to a part of a tensor as it is; None for anything else."""
        symbol = self._symbols.find(value.name) if isinstance(value, Name) else None
        if not isinstance(value, Name) or not isinstance(symbol, Tensor) or symbol.kind == "parameter":
            return None
        if target.box is None or target.tensor is None:
            return None
        tile = self._symbols.stored(value.name, value)
        is_same = tile.shape == target.sizes and tile.element == target.tensor.element
        if not is_same:
            return None
        if target.tensor.value is None:
            tensor_for_parts(target.tensor, self._expressions)
        return tile.value

    def _computed(
        self, target: StoreTarget, value: Expression, element: Attribute | None
    ) -> tuple[SSAValue, Attribute]:
        """The right side, in the shape of what is written, and its type, which is `element` if one is given."""

        def destination(element: Attribute, reads: Reads) -> Destination:
            return self._destination(target, element, reads)

        split = split_indices(value, target.space, self._symbols.numbers)
        if split is not None:
            if target.box is not None:
                raise Fault("a part of a tensor cannot be stored by quotients of indices: store the whole", value)
            space, value = split
            sizes = tuple(range.size for range in space.values())
            whole = StoreTarget(None, space, None, tuple(loops(len(space))), sizes)
            computed, found = self._computed(whole, value, element)
            return self._builder.reshape(computed, target.sizes), found
        if isinstance(value, Call) and value.function == "dot":
            return self._expressions.dot(value, destination, element)
        if isinstance(value, Call) and self._expressions.is_reduction(value, target.space):
            # One that is the same along an index of the left is repeated along it.
            if self._expressions.names_in(value, target.space) == list(target.space) and value.arguments:
                return self._expressions.reduce(value, target.space, destination, element)
        return self._expressions.elementwise(value, target.space, element, destination)

    def _add(self, target: StoreTarget, at: Name | Access, value: Expression) -> None:
        tensor = target.tensor
        name = at.name if isinstance(at, Name) else at.tensor
        window = None if target.box is None else tuple(span.window() for span in target.box)
        self._symbols.stored(name, at, window=window)
        assert tensor is not None
        assert tensor.value is not None
        old = tensor.value
        if target.box is not None:
            old = self._builder.slice(old, self._spans(target))
            past = [size - span.length for size, span in zip(target.sizes, target.box, strict=True)]
            old = self._builder.pad(old, [0] * len(past), past, 0)
        total = self._expressions.add_to(value, target.space, old, target.dims, tensor.element)
        if total is None:
            read = as_read(at)
            if target.box is not None and isinstance(read, Access):
                # A last tile passes the end of the tensor; what is computed there is not stored.
                read = replace(read, otherwise=Number("0", at=at.at))
            total, _ = self._computed(target, Binary("+", read, value, at=at.at), tensor.element)
        self._store(target, tensor, total, at)

    def _copy(self, target: Name | Access, value: Expression, at: Node) -> None:
        """An explicit copy, which `at` asks for."""
        self._builder.location = self._expressions.location(at.at)
        name = target.name if isinstance(target, Name) else target.tensor
        self._builder.name = name
        found = self._targets.find(target, name, value)
        if not all(index.isdigit() for index in found.space):
            raise Fault("load and store copy tiles, which have no indices", target, ["y[i, j] = x[i, j] has them"])
        shape, tensor = tuple(each.size for each in found.space.values()), found.tensor
        source, element = self._copies.source(value, shape, None if tensor is None else tensor.element)
        if tensor is None:
            tensor = Tensor(name, "local", element, shape, target)
            self._symbols.declare(tensor, target)
        if found.box is None:
            self._copy_whole(found, tensor, source)
        else:
            self._copy_to_part(found, tensor, source)
        self._loops.record(Store(tensor, found.box, target))

    def _copy_whole(self, target: StoreTarget, tensor: Tensor, source: SSAValue) -> None:
        dest = self._destination(target, tensor.element, {})
        # Off chip it is copied to by way of a tile.
        if tensor.scope != DRAM and self._copies.is_window(source) and isinstance(dest.value.owner, EmptyOp):
            self._copies.mark(source)
            self._keep(tensor, source)
        else:
            self._keep(tensor, self._copies.copy(source, self._copies.without_units(dest.value, tensor.shape)))

    def _copy_to_part(self, target: StoreTarget, tensor: Tensor, source: SSAValue) -> None:
        assert target.box is not None
        if tensor.value is None:
            tensor_for_parts(tensor, self._expressions)
        assert tensor.value is not None
        lengths = [span.length for span in target.box]
        part = self._builder.slice(tensor.value, self._spans(target))
        # What passes the end of the tensor is not copied.
        kept = [length for length, dim in zip(lengths, target.dims, strict=True) if isinstance(dim, AffineDimExpr)]
        inside = self._builder.slice(source, [DimRange(0, length) for length in kept])
        made = self._copies.copy(inside, self._copies.without_units(part, kept))
        tensor.value = self._builder.insert(made, tensor.value, self._spans(target))
        self._builder.names[tensor.value] = tensor.name

    # storing

    def _spans(self, target: StoreTarget) -> list[DimRange]:
        assert target.box is not None
        return [DimRange(self._accesses.offset(span.place), span.length, span.stride) for span in target.box]

    def _destination(self, target: StoreTarget, element: Attribute, reads: Reads) -> Destination:
        """Where the right side is written."""
        tensor = target.tensor
        if tensor is None:
            return self._expressions.fresh(target.space, element)
        old = tensor.value
        if target.box is None:
            # What a loop carries is overwritten in its place, unless other elements of it are read.
            is_carried = old is not None and self._symbols.depth > tensor.depth
            others = [read for read in reads.values() if read.value is old and read.dims != target.dims]
            if old is not None and is_carried and not others:
                return Destination(old, target.dims)
            return Destination(self._builder.empty(target.sizes, signless(element)), target.dims)
        if tensor.value is None:
            tensor_for_parts(tensor, self._expressions)
        if target.sizes != tuple(span.length for span in target.box):
            return Destination(self._builder.empty(target.sizes, signless(element)), target.dims)
        assert tensor.value is not None
        return Destination(self._builder.slice(tensor.value, self._spans(target)), target.dims)

    def _store(self, target: StoreTarget, tensor: Tensor, written: SSAValue, at: Node) -> None:
        if target.box is None:
            self._keep(tensor, written)
        else:
            assert tensor.value is not None
            inside = self._builder.slice(written, [DimRange(0, span.length) for span in target.box])
            tensor.value = self._builder.insert(inside, tensor.value, self._spans(target))
            self._builder.names[tensor.value] = tensor.name
        self._loops.record(Store(tensor, target.box, at))
