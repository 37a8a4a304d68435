# SPDX-License-Identifier: Apache-2.0
"""Ops with regions: groups of operators that become one kernel, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import I64, IntegerAttr, UnitAttr, i1, i64
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    Pure,
    ReturnLike,
    SingleBlockImplicitTerminator,
)
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.graph.base import (
    INTEGERS,
    TENSOR,
    PatternAttr,
    PatternKind,
    Tensor,
    Value,
    erased,
    integer,
    require,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.sizes import may_equal


@irdl_custom_directive
class PatternWord(CustomDirective):
    """A pattern kind as a bare word."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.value.set(state, PatternAttr(parser.parse_str_enum(PatternKind)))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        attribute = self.value.get(op)
        assert isinstance(attribute, PatternAttr)
        state.print_whitespace(printer)
        printer.print_string(attribute.data.value)


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a region of a `graph.fused`, a `graph.if` or a `graph.loop` with the values that it gives."""

    name = "graph.yield"

    values = var_operand_def(TENSOR)

    traits = lazy_traits_def(lambda: (IsTerminator(), ReturnLike(), HasParent(FusedOp, IfOp, LoopOp), Pure()))
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: Value):
        super().__init__(operands=[values])


@irdl_op_definition
class FusedOp(IRDLOperation):
    """
    A group of operators that becomes one kernel.

    The region sees nothing but its arguments, which stand for the operands, and ends in a `graph.yield`
    of the results. `pattern` is the pattern kind of the group as a whole.
    """

    name = "graph.fused"

    inputs = var_operand_def(TENSOR)
    """What the group reads; an argument of the region stands for each."""
    outputs = var_result_def(TENSOR)
    """What it gives."""
    pattern = prop_def(PatternAttr)
    """How the group as a whole may be fused with others."""
    body = region_def("single_block")
    """The operators."""

    traits = traits_def(IsolatedFromAbove(), SingleBlockImplicitTerminator(YieldOp), Pure())
    custom_directives = (PatternWord,)
    assembly_format = (
        "`(` $inputs `)` `pattern` custom<PatternWord>($pattern) attr-dict-with-keyword $body"
        " `:` functional-type($inputs, $outputs)"
    )

    def __init__(
        self,
        inputs: Sequence[Value],
        body: Region | Block,
        *,
        pattern: PatternKind,
        result_types: Sequence[Attribute] | None = None,
    ):
        region = body if isinstance(body, Region) else Region(body)
        if result_types is None:
            terminator = region.block.last_op
            assert isinstance(terminator, YieldOp)
            result_types = [value.type for value in terminator.values]
        super().__init__(
            operands=[inputs],
            result_types=[result_types],
            properties={"pattern": PatternAttr(pattern)},
            regions=[region],
        )

    @property
    def terminator(self) -> YieldOp:
        """The `graph.yield` that ends the region."""
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last

    def argument_types(self) -> list[Attribute]:
        """The types of what the region sees."""
        return [value.type for value in self.inputs]

    def infer_types(self) -> list[Attribute]:
        """The types of the results, by those of what is yielded."""
        return [value.type for value in self.terminator.values]

    def verify_(self) -> None:
        for value in (*self.operands, *self.results):
            tensor_of(value)
        given = self.argument_types()
        taken = [argument.type for argument in self.body.block.args]
        require(
            given == taken,
            lambda: f"{self.name} has {_types(given)} as operands and {_types(taken)} as block arguments",
        )
        yielded = self.infer_types()
        results = [value.type for value in self.outputs]
        require(
            yielded == results,
            lambda: f"{self.name} yields {_types(yielded)} and has {_types(results)} as results",
        )


@irdl_op_definition
class IfOp(IRDLOperation):
    """
    The results of one of two graphs, chosen by a condition that is known when the program runs.

    Each region sees nothing but its arguments, which stand for the `inputs`, the same for both, and ends in a
    `graph.yield` of the results. Only the branch that is taken is computed: a value that both need is computed before.
    An `If` of ONNX, whose branches read the values around them, becomes this op with those as its inputs.
    """

    name = "graph.if"

    condition = operand_def(TENSOR)
    """One truth value, of type i1: of rank 0, or with one element."""
    inputs = var_operand_def(TENSOR)
    """What the branches read; an argument of each region stands for each."""
    outputs = var_result_def(TENSOR)
    """What the branch that is taken gives; of the same types in both."""
    then_body = region_def("single_block")
    """What is computed where the condition is true."""
    else_body = region_def("single_block")
    """What is computed where it is not."""

    traits = traits_def(IsolatedFromAbove(), SingleBlockImplicitTerminator(YieldOp), Pure())
    assembly_format = (
        "$condition `(` $inputs `)` attr-dict-with-keyword $then_body `else` $else_body"
        " `:` type($condition) `,` functional-type($inputs, $outputs)"
    )

    def __init__(
        self, condition: Value, inputs: Sequence[Value], then_body: Block, else_body: Block, types: Sequence[Attribute]
    ):
        super().__init__(
            operands=[condition, inputs],
            result_types=[types],
            regions=[Region(then_body), Region(else_body)],
        )

    def argument_types(self) -> list[Attribute]:
        """The types of what each region sees."""
        return [value.type for value in self.inputs]

    def infer_types(self) -> list[Attribute]:
        """The types of the results, by those of what is yielded in the first branch."""
        last = self.then_body.block.last_op
        assert isinstance(last, YieldOp)
        return [value.type for value in last.values]

    def verify_(self) -> None:
        for value in (*self.operands, *self.results):
            tensor_of(value)
        _one_i1(self.condition, f"the condition of {self.name}")
        given = self.argument_types()
        results = [value.type for value in self.outputs]
        for name, region in (("then", self.then_body), ("else", self.else_body)):
            taken = [argument.type for argument in region.block.args]
            require(
                given == taken,
                lambda name=name, taken=taken: (
                    f"{self.name} has {_types(given)} as inputs and {_types(taken)} as arguments of its {name} branch"
                ),
            )
            last = region.block.last_op
            assert isinstance(last, YieldOp)
            yielded = [value.type for value in last.values]
            require(
                yielded == results,
                lambda name=name, yielded=yielded: (
                    f"{self.name} yields {_types(yielded)} in its {name} branch and has {_types(results)} as results"
                ),
            )


@irdl_op_definition
class LoopOp(IRDLOperation):
    """
    A graph that is computed again and again: of each value that it carries it takes one and gives the next.

    The region sees nothing but its arguments: the number of the iteration from 0 on, a `tensor<i64>`; the values that
    are carried, at first the `inits`; a line of each of the `slices`, that of this number, without their first
    dimension; and the `inputs` as they are. It ends in a `graph.yield` of the next values, and then of lines. The
    results are the values after the last iteration, and all lines, each as a tensor with one more dimension in front.

    `trips` says how many iterations there are, or else the first size of the `slices`. With `reverse` their numbers
    go down to 0. With a `count` or a `condition` a run decides. There are as many iterations as the `count` says, and
    none is begun after the condition was false: before the first it is the operand, after each what the
    `graph.yield` gives first. `trips`, if given, is then the most that a run may ask for: more is a fault of the
    program's user, which the interpreter refuses and a compiled program returns, having done that many. A loop that
    gives or takes lines has such a bound. Lines of iterations that did not happen are zeros.

    A `Scan` of ONNX, and a recurrent layer, is a loop whose number of iterations is known. A `Loop` is any of them.
    """

    name = "graph.loop"

    count = opt_operand_def(TENSOR)
    """The number of iterations, where a run decides it: one integer. None below 1."""
    condition = opt_operand_def(TENSOR)
    """Whether there is a first iteration, where a run decides it: one i1. The region yields whether there is a next."""
    inits = var_operand_def(TENSOR)
    """What is carried into the first iteration."""
    slices = var_operand_def(TENSOR)
    """Tensors of which each iteration takes one line."""
    inputs = var_operand_def(TENSOR)
    """What every iteration reads."""
    outputs = var_result_def(TENSOR)
    """What is carried out of the last iteration, and then the lines of all."""
    trips = opt_prop_def(IntegerAttr[I64])
    """The number of iterations, or where a run decides it, the most there may be."""
    reverse = opt_prop_def(UnitAttr)
    """Whether the last lines come first."""
    body = region_def("single_block")
    """What is computed in every iteration."""

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(IsolatedFromAbove(), SingleBlockImplicitTerminator(YieldOp), Pure())
    assembly_format = (
        "(`trips` $trips^)? (`reverse` $reverse^)? (`count` `(` $count^ `:` type($count) `)`)?"
        " (`while` `(` $condition^ `:` type($condition) `)`)? (`carry` `(` $inits^ `:` type($inits) `)`)?"
        " (`slices` `(` $slices^ `:` type($slices) `)`)? (`reads` `(` $inputs^ `:` type($inputs) `)`)?"
        " attr-dict-with-keyword $body (`->` type($outputs)^)?"
    )

    def __init__(
        self,
        inits: Sequence[Value],
        slices: Sequence[Value],
        inputs: Sequence[Value],
        body: Block,
        *,
        trips: int | None = None,
        reverse: bool = False,
        count: Value | None = None,
        condition: Value | None = None,
    ):
        yielded = body.last_op
        assert isinstance(yielded, YieldOp)
        lines = yielded.values[(condition is not None) + len(inits) :]
        super().__init__(
            operands=[count, condition, inits, slices, inputs],
            result_types=[_loop_types(inits, lines, _most(trips, slices))],
            properties={
                "trips": None if trips is None else integer(trips),
                "reverse": UnitAttr() if reverse else None,
            },
            regions=[Region(body)],
        )

    @property
    def is_counted(self) -> bool:
        """Whether the number of iterations is no matter of the run."""
        return self.count is None and self.condition is None

    @property
    def most(self) -> int | None:
        """The number of iterations if it `is_counted`, else the most there may be; None if there is no bound."""
        return _most(None if self.trips is None else self.trips.value.data, self.slices)

    @property
    def terminator(self) -> YieldOp:
        """The `graph.yield` that ends the region."""
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last

    @property
    def goes_on(self) -> SSAValue | None:
        """What is yielded as the condition of another iteration."""
        return None if self.condition is None else self.terminator.values[0]

    @property
    def nexts(self) -> Sequence[SSAValue]:
        """What is yielded to be carried into the next iteration."""
        first = 0 if self.condition is None else 1
        return self.terminator.values[first : first + len(self.inits)]

    @property
    def lines(self) -> Sequence[SSAValue]:
        """What is yielded as lines of results."""
        return self.terminator.values[(self.condition is not None) + len(self.inits) :]

    def argument_types(self) -> list[Attribute]:
        """The types of what the region sees."""
        lines: list[Attribute] = []
        for value in self.slices:
            tensor = tensor_of(value)
            require(tensor.get_num_dims() > 0, lambda tensor=tensor: f"{self.name} takes no lines of {tensor}")
            lines.append(erased(tensor_type(tensor.element_type, tensor.get_shape()[1:]), nameless_only=True))
        types = [value.type for value in (*self.inits, *self.inputs)]
        return [tensor_type(i64, []), *types[: len(self.inits)], *lines, *types[len(self.inits) :]]

    def infer_types(self) -> list[Tensor]:
        """The types of the results, by those of what is carried and yielded."""
        return _loop_types(self.inits, self.lines, self.most)

    def verify_(self) -> None:
        for value in (*self.operands, *self.results):
            tensor_of(value)
        self._verify_trips()
        given, taken = self.argument_types(), [argument.type for argument in self.body.block.args]
        require(
            given == taken,
            lambda: f"the region of {self.name} takes {_types(taken)}, and is given {_types(given)}",
        )
        if (goes_on := self.goes_on) is not None:
            _one_i1(goes_on, f"what {self.name} yields first, whether there is another iteration,")
        inits, nexts = ([value.type for value in each] for each in (self.inits, self.nexts))
        require(
            inits == nexts,
            lambda: f"{self.name} carries {_types(inits)} into its first iteration and {_types(nexts)} into the next",
        )
        expected = [erased(each) for each in self.infer_types()]
        results = [value.type for value in self.outputs]
        require(
            expected == results,
            lambda: f"{self.name} has the results {_types(results)}, and its region gives {_types(expected)}",
        )

    def _verify_trips(self) -> None:
        if self.condition is not None:
            _one_i1(self.condition, f"the condition of {self.name}")
        if self.count is not None:
            count = tensor_of(self.count)
            INTEGERS.check(count, self.name)
            is_one = all(size == 1 for size in count.get_shape())
            require(is_one, lambda: f"the count of {self.name} must be one integer, found {count}")
        require(self.is_counted or self.reverse is None, f"{self.name} with reverse has a number of iterations")
        most = self.most
        require(not self.is_counted or most is not None, f"{self.name} has no number of iterations, and no condition")
        require(most is None or most >= 0 or self.trips is None, f"{self.name} has {most} iterations")
        for value in self.slices:
            size = tensor_of(value).get_shape()[0]
            # A run that decides may take fewer lines than there are.
            enough = most is None or may_equal(size, most) or (not self.is_counted and size > most)
            require(enough, lambda size=size: f"{self.name} has {most} iterations, and takes lines of {size}")


def _most(trips: int | None, slices: Sequence[Value]) -> int | None:
    if trips is not None or not slices:
        return trips
    shape = tensor_of(slices[0]).get_shape()
    return shape[0] if shape else None


def _loop_types(inits: Sequence[Value], lines: Sequence[Value], most: int | None) -> list[Tensor]:
    types = [tensor_of(value) for value in inits]
    for line in map(tensor_of, lines):
        if most is None:
            raise VerifyException(f"{LoopOp.name} gives lines, and their number has no bound: it needs trips")
        types.append(tensor_type(line.element_type, [most, *line.get_shape()]))
    return [erased(each, nameless_only=True) for each in types]


def _one_i1(value: SSAValue, what: str) -> None:
    tensor = tensor_of(value)
    is_one = tensor.element_type == i1 and all(size == 1 for size in tensor.get_shape())
    require(is_one, lambda: f"{what} must be one i1, found {tensor}")


def _types(types: Sequence[Attribute]) -> str:
    return "(" + ", ".join(str(each) for each in types) + ")"
