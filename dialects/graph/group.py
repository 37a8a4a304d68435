"""Ops with regions: groups of operators that become one kernel, and branches."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, Block, Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
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

from penstock.dialects.graph.base import (
    TENSOR,
    PatternAttr,
    PatternKind,
    Value,
    require,
    tensor_of,
)


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
    """Ends a region of a `graph.fused` or a `graph.if` with the values that are its results."""

    name = "graph.yield"

    values = var_operand_def(TENSOR)

    traits = lazy_traits_def(lambda: (IsTerminator(), ReturnLike(), HasParent(FusedOp, IfOp), Pure()))
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

    def verify_(self) -> None:
        for value in (*self.operands, *self.results):
            tensor_of(value)
        given = [value.type for value in self.inputs]
        taken = [argument.type for argument in self.body.block.args]
        require(
            given == taken,
            lambda: f"{self.name} has {_types(given)} as operands and {_types(taken)} as block arguments",
        )
        yielded = [value.type for value in self.terminator.values]
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

    def verify_(self) -> None:
        for value in (*self.operands, *self.results):
            tensor_of(value)
        condition = tensor_of(self.condition)
        require(
            condition.element_type == i1 and all(size == 1 for size in condition.get_shape()),
            lambda: f"the condition of {self.name} must be one i1, found {condition}",
        )
        given = [value.type for value in self.inputs]
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


def _types(types: Sequence[Attribute]) -> str:
    return "(" + ", ".join(str(each) for each in types) + ")"
