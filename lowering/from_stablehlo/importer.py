"""The walk over functions of StableHLO, which builds the graph: calls, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import body_block
from penstock.dialects.graph import ConstantOp, GraphOp, IfOp, YieldOp, tensor_of
from penstock.dialects.graph.base import is_float
from penstock.dialects.locations import inherit_locations
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_onnx.importer import isolate
from penstock.lowering.from_stablehlo import elements, places, products, reductions
from penstock.lowering.from_stablehlo.syntax import HloOp
from penstock.lowering.from_stablehlo.table import CONVERSIONS, Unsupported
from penstock.passes.graph.terms import Term, TermBuilder
from penstock.passes.graph.values import constant_of
from penstock.runtime.interpreter.graph import evaluate_op

_REGISTERED = (elements, places, products, reductions)
"""The files whose conversions are registered when they are imported."""
MOST_ITERATIONS = 4096
"""Of a loop: each is written out."""
FOLDED = 64
"""Elements of a value that is computed at import where it can be, such as an index: what is known decides loops."""

Values = dict[SSAValue, Term]
"""What each value of a function stands for."""


@dataclass
class HloImporter(TermBuilder):
    """Imports `@main` of one module."""

    module: ModuleOp
    place: str
    store: WeightStore = field(default_factory=WeightStore)

    def __post_init__(self) -> None:
        super().__init__()
        self._block = Block()
        self._at: Operation = self.module
        self._calls = ["main"]
        self._functions = {op.sym_name.data: op for op in self.module.ops if isinstance(op, FuncOp)}

    def run(self) -> ModuleOp:
        if (main := self._functions.get("main")) is None:
            raise UserError("the text has no function @main", loc=self.place)
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
                if term.value.type != result.type:
                    raise self._refusal(f"{op.name} gives {term.value.type}, not {result.type}", op)
                values[result] = term
        raise self._refusal("the block has no end", self._at)

    def _op(self, op: Operation, operands: Sequence[Term], values: Values) -> Sequence[Term]:
        if isinstance(op, CallOp):
            return self._call(op.callee.string_value(), operands)
        if not isinstance(op, HloOp):
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

    def _while(self, op: HloOp, operands: Sequence[Term], values: Values) -> Sequence[Term]:
        """All iterations, one after the other, of a loop whose condition is known before each."""
        condition, body = (region.block for region in op.bodies)
        state = list(operands)
        for _ in range(MOST_ITERATIONS + 1):
            (goes_on,) = self._ops(condition, values | dict(zip(condition.args, state, strict=True)))
            self._at = op
            if (known := self.known(goes_on)) is None:
                raise Unsupported("the number of its iterations is known only when the program runs")
            if not known:
                return state
            state = self._ops(body, values | dict(zip(body.args, state, strict=True)))
        raise Unsupported(f"it has more than {MOST_ITERATIONS} iterations, each of which is written out")

    def _branches(self, op: HloOp, condition: Term, values: Values) -> Sequence[Term]:
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
        outer, made, results = self._block, (Block(), Block()), list[list[Term]]()
        try:
            for source, self._block in zip(blocks, made, strict=True):
                results.append(self._ops(source, dict(values)))
        finally:
            self._block = outer
        types = [value.type for value in op.results]
        for block, terms in zip(made, results, strict=True):
            block.add_op(YieldOp(*(term.value for term in terms)))
        branch = IfOp(condition.value, isolate(made), *made, types)
        branch.location = op.location
        self._block.add_op(branch)
        return [self.term(value) for value in branch.outputs]

    # Faults.

    def _check(self, type: Attribute, op: Operation) -> None:
        """Raise UserError for a type that graphs do not have."""
        try:
            if not isa(type, TensorType):
                raise ValueError(f"{type} is no tensor")
            numpy_dtype(type.element_type)
            if any(size < 0 for size in type.get_shape()):
                raise ValueError(f"{type} has sizes that are open; lower the function for numbers")
        except ValueError as error:
            raise self._refusal(str(error), op, UNSUPPORTED) from None

    def _refusal(self, message: str, op: Operation, status: int = 1) -> UserError:
        return UserError(message, loc=location_of(op), status=status)
