# SPDX-License-Identifier: Apache-2.0
"""The walk over functions of StableHLO or TOSA, which builds the graph: calls, branches and loops."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, i64
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import body_block
from penstock.dialects.graph import ConstantOp, GraphOp, IfOp, LoopOp, YieldOp, tensor_of
from penstock.dialects.graph.base import is_float, tensor_type
from penstock.dialects.locations import inherit_locations
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_mlir.entry import entry_of
from penstock.lowering.from_mlir.scans import Lines, lines_of, together
from penstock.lowering.from_mlir.stablehlo import elements, places, products, reductions
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import CONVERSIONS, Unsupported, is_shape
from penstock.lowering.from_mlir.tosa import elements as tosa_elements
from penstock.lowering.from_mlir.tosa import places as tosa_places
from penstock.lowering.from_mlir.tosa import products as tosa_products
from penstock.lowering.from_mlir.trip_counts import trip_count
from penstock.passes.graph.terms import Term, TermBuilder
from penstock.passes.graph.values import constant_of, isolate
from penstock.runtime.interpreter.graph import evaluate_op

_REGISTERED = (elements, places, products, reductions, tosa_elements, tosa_places, tosa_products)
"""The files whose conversions are registered when they are imported."""
MOST_UNROLLED = 64
"""Iterations of a loop that are written out where they differ in more than numbers, such as in a place that is cut."""
FOLDED = 64
"""Elements of a value that is computed at import where it can be, such as an index: what is known decides loops."""

Values = dict[SSAValue, Term]
"""What each value of a function stands for."""


@dataclass
class GraphImporter(TermBuilder):
    """Imports `@main` of one module."""

    module: ModuleOp
    place: str
    store: WeightStore = field(default_factory=WeightStore)

    def __post_init__(self) -> None:
        super().__init__()
        self._block = Block()
        self._at: Operation = self.module
        self._calls = list[str]()
        self._functions = {op.sym_name.data: op for op in self.module.ops if isinstance(op, FuncOp)}

    def run(self) -> ModuleOp:
        main = entry_of(self.module, self.place)
        self._calls = [main.sym_name.data]
        source = body_block(main, "imported")
        for argument in source.args:
            self._check(argument.type, main)
            value = self._block.insert_arg(argument.type, len(self._block.args), argument.location)
            value.name_hint = argument.name_hint
        results = self._function(main, [self.term(value) for value in self._block.args])
        self._block.add_op(ReturnOp(*(term.value for term in results)))
        types = ([value.type for value in self._block.args], [term.value.type for term in results])
        function = FuncOp("main", types, Region(self._block))
        function.location = main.location
        module = ModuleOp([function])
        module.location = self.module.location
        inherit_locations(module)
        return module

    # As a builder of terms.

    def emit(self, op: GraphOp) -> Term:
        """Append an op; what is small and known already becomes a constant."""
        if op.is_identity():
            found = op.operands[0]
            op.erase()
            return self.term(found)
        known = [self.known(self.term(value)) for value in op.operands]
        result = tensor_of(op.result)
        # An index, a condition, or one number.
        is_small = result.element_count() <= (1 if is_float(result.element_type) else FOLDED)
        if is_small and all(array is not None and array.size <= FOLDED for array in known):
            (array,) = evaluate_op(op, [array for array in known if array is not None], self.store)
            op.erase()
            return self.array(np.asarray(array), "constant")
        op.verify_()
        return self._added(op)

    def _added(self, op: GraphOp) -> Term:
        op.location = self._at.location
        self._block.add_op(op)
        return self.term(op.result)

    def array(self, array: Array, name: str) -> Term:
        return self._added(constant_of(array, name, self.store, self._at.location))

    def number(self, number: float, element: Attribute) -> Term:
        """A scalar: one for each use, since the blocks of a branch see nothing of each other."""
        return self.array(np.asarray(number, numpy_dtype(element)), "number")

    def known(self, term: Term) -> Array | None:
        """The value of a constant, None of anything else."""
        owner = term.value.owner
        return evaluate_op(owner, [], self.store)[0] if isinstance(owner, ConstantOp) else None

    def array_of(self, value: SSAValue) -> Array | None:
        """The value of a constant, if it is small."""
        return self.known(self.term(value)) if tensor_of(value).element_count() <= FOLDED else None

    # The walk.

    def _function(self, function: FuncOp, arguments: Sequence[Term]) -> list[Term]:
        block = body_block(function, "imported")
        return self._ops(block, dict(zip(block.args, arguments, strict=True)))

    def _ops(self, block: Block, values: Values) -> list[Term]:
        """Convert the operations of a block, for what ends it."""
        for op in block.ops:
            self._at = op
            operands = [values[value] for value in op.operands]
            if isinstance(op, ReturnOp) or op.name == "stablehlo.return":
                return operands
            for result in op.results:
                self._check(result.type, op)
            try:
                found = self._op(op, operands, values)
            except Unsupported as reason:
                words = f": {reason}" if str(reason) else ""
                raise self._refusal(f"{op.name} is not supported{words}", op, UNSUPPORTED) from None
            except (VerifyException, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise self._refusal(f"{op.name} is malformed: {error}", op) from None
            for result, term in zip(op.results, found, strict=True):
                if term.value.type != result.type and not is_shape(result.type):
                    raise self._refusal(f"{op.name} gives {term.value.type}, not {result.type}", op)
                values[result] = term
        raise self._refusal("the block has no end", self._at)

    def _op(self, op: Operation, operands: Sequence[Term], values: Values) -> Sequence[Term]:
        if isinstance(op, CallOp):
            return self._call(op.callee.string_value(), operands)
        if not isinstance(op, ForeignOp):
            raise Unsupported("")
        if op.short == "while":
            return self._while(op, operands, values)
        if op.short in ("if", "case"):
            return self._branches(op, operands[0], values)
        if (convert := CONVERSIONS.get(op.name)) is None:
            raise Unsupported("")
        found = convert(self, op, *operands)
        return [found] if isinstance(found, Term) else found

    def _call(self, name: str, operands: Sequence[Term]) -> list[Term]:
        """What a function gives, whose operations are written here."""
        if (function := self._functions.get(name)) is None:
            raise VerifyException(f"the text has no function @{name}")
        if name in self._calls:
            raise Unsupported(f"@{name} calls itself")
        self._calls.append(name)
        results = self._function(function, operands)
        self._calls.pop()
        return results

    def _while(self, op: ForeignOp, operands: Sequence[Term], values: Values) -> Sequence[Term]:
        """A `graph.loop`; where its body has no form that is the same for all iterations, these are written out."""
        calls = list(self._calls)
        try:
            return self._loop(op, operands, values)
        except UserError as error:
            self._at, self._calls = op, calls
            if error.status != UNSUPPORTED or (found := self._unrolled(op, operands, values)) is None:
                raise
            return found

    def _loop(self, op: ForeignOp, operands: Sequence[Term], values: Values) -> Sequence[Term]:
        condition, body = (region.block for region in op.bodies)
        inits = [term.value for term in operands]
        terminator = body.last_op
        assert terminator is not None
        carried = [n for n, value in enumerate(terminator.operands) if value is not body.args[n]]

        def given(block: Block, source: Block) -> tuple[list[SSAValue], Values]:
            """What is carried as arguments of a block, and what the arguments of its source stand for."""
            state = list(inits)
            for n in carried:
                state[n] = block.insert_arg(inits[n].type, len(block.args))
            return state, values | dict(zip(source.args, map(self.term, state), strict=True))

        with self._region() as block:
            block.insert_arg(tensor_type(i64, []), 0)
            state, seen = given(block, body)
            nexts = self._ops(body, seen)
            with self._region() as test:
                tested, seen = given(test, condition)
                (goes_on,) = self._ops(condition, seen)
            results = [term.value for term in nexts]
            trips = trip_count(self, (test, tested, goes_on.value), (block, state, results), inits)
            test.erase(safe_erase=False)
            if trips is None:
                seen = values | dict(zip(condition.args, nexts, strict=True))
                goes_on = self._ops(condition, seen)[0]
        self._at = op
        if trips == 0 or not carried:
            block.erase(safe_erase=False)
            return operands
        begins: SSAValue | None = None
        lines = Lines()
        if trips is None:
            begins = self._ops(condition, values | dict(zip(condition.args, operands, strict=True)))[0].value
            self._at = op
        else:
            lines = lines_of(self, block, state, results, inits, trips)
            carried = [n for n in carried if n not in lines.written]
            for n in lines.written:
                block.erase_arg(state[n])  # pyright: ignore[reportArgumentType]
        given_on = [] if trips is not None else [goes_on.value]
        made = [line for line, _ in lines.written.values()]
        block.add_op(YieldOp(*given_on, *(results[n] for n in carried), *made))
        state = [inits[n] for n in carried]
        loop = LoopOp(state, lines.slices, isolate([block]), block, trips=trips, condition=begins)
        loop.location = op.location
        self._block.add_op(loop)
        found = dict(zip(carried, map(self.term, loop.outputs), strict=False))
        for (n, (_, at)), stacked in zip(lines.written.items(), loop.outputs[len(carried) :], strict=True):
            found[n] = together(self, inits[n], self.term(stacked), at)
        return [found.get(n) or self.term(value) for n, value in enumerate(inits)]

    def _unrolled(self, op: ForeignOp, operands: Sequence[Term], values: Values) -> Sequence[Term] | None:
        """All iterations, one after the other; None where their number is not known, or large."""
        condition, body = (region.block for region in op.bodies)
        state = list(operands)
        for _ in range(MOST_UNROLLED + 1):
            (goes_on,) = self._ops(condition, values | dict(zip(condition.args, state, strict=True)))
            self._at = op
            if (known := self.known(goes_on)) is None:
                return None
            if not known:
                return state
            state = self._ops(body, values | dict(zip(body.args, state, strict=True)))
        return None

    @contextmanager
    def _region(self) -> Generator[Block]:
        """What is emitted inside goes to a block of its own."""
        outer, block = self._block, Block()
        self._block = block
        try:
            yield block
        except BaseException:
            block.erase(safe_erase=False)
            raise
        finally:
            self._block = outer

    def _branches(self, op: ForeignOp, condition: Term, values: Values) -> Sequence[Term]:
        """One branch, where it is known which; else both, of a `graph.if`."""
        blocks = [region.block for region in op.bodies]
        if (known := self.known(condition)) is not None:
            index = int(known)
            taken = (0 if index else 1) if op.short == "if" else index if 0 <= index < len(blocks) else -1
            return self._ops(blocks[taken], dict(values))
        if len(blocks) != 2:
            raise Unsupported("one of more than two branches is taken")
        if op.short == "case":
            # The first branch is that of 0.
            blocks, condition = blocks[::-1], condition.equal(0).apply("not")
        made, results = list[Block](), list[list[Term]]()
        for source in blocks:
            with self._region() as block:
                made.append(block)
                results.append(self._ops(source, dict(values)))
        types = [value.type for value in op.results]
        for block, terms in zip(made, results, strict=True):
            block.add_op(YieldOp(*(term.value for term in terms)))
        branch = IfOp(condition.value, isolate(made), made[0], made[1], types)
        branch.location = op.location
        self._block.add_op(branch)
        return [self.term(value) for value in branch.outputs]

    # Faults.

    def _check(self, type: Attribute, op: Operation) -> None:
        """Raise UserError for a type that graphs do not have."""
        try:
            if is_shape(type):
                return
            if not isa(type, TensorType):
                raise ValueError(f"{type} is no tensor")
            numpy_dtype(type.element_type)
            if any(size < 0 for size in type.get_shape()):
                raise ValueError(f"{type} has sizes that are open; lower the function for numbers")
        except ValueError as error:
            raise self._refusal(str(error), op, UNSUPPORTED) from None

    def _refusal(self, message: str, op: Operation, status: int = 1) -> UserError:
        return UserError(message, loc=location_of(op), status=status)
