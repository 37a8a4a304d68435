# SPDX-License-Identifier: Apache-2.0
"""
What xDSL 0.74 lacks of the scf dialect: `scf.forall` and its terminator, `scf.forall.in_parallel`.

See https://mlir.llvm.org/docs/Dialects/SCFDialect/#scfforall-scfforallop
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    TensorType,
    i64,
)
from xdsl.dialects.scf import Scf
from xdsl.dialects.utils import (
    get_dynamic_index_list,
    parse_assignment,
    parse_dynamic_index_list_without_types,
    print_assignment,
    print_dynamic_index_list,
    split_dynamic_index_list,
)
from xdsl.ir import Attribute, Block, BlockArgument, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsTerminator,
    NoTerminator,
    RecursiveMemoryEffect,
    SingleBlockImplicitTerminator,
)
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.threads import MOST_THREADS
from penstock.dialects.upstream.gpu import DeviceMappingAttr
from penstock.dialects.upstream.tensor import ParallelInsertSliceOp

THREADS = "threads"
"""The attribute of a `scf.forall` with the number of threads that run its iterations, adjacent ones in one thread."""

Bound = int | SSAValue
"""A bound or a step: a number, or a value of type index."""


@irdl_op_definition
class InParallelOp(IRDLOperation):
    """
    The end of an iteration of `scf.forall`: what it inserts into the tensors that the iterations share.

    The insertions of different iterations happen in any order, so they must not overlap.
    """

    name = "scf.forall.in_parallel"

    region = region_def("single_block")

    traits = lazy_traits_def(lambda: (HasParent(ForallOp), IsTerminator(), NoTerminator()))

    def __init__(self, insertions: Sequence[Operation] = ()):
        super().__init__(regions=[Region(Block(insertions))])

    @property
    def insertions(self) -> list[ParallelInsertSliceOp]:
        """What is inserted."""
        return [op for op in self.region.block.ops if isinstance(op, ParallelInsertSliceOp)]

    def verify_(self) -> None:
        for op in self.region.block.ops:
            if not isinstance(op, ParallelInsertSliceOp):
                raise VerifyException(f"holds {op.name}, and may hold tensor.parallel_insert_slice only")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_region(self.region, print_empty_block=False)
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> InParallelOp:
        region = parser.parse_region()
        if not region.blocks:
            region.add_block(Block())
        op = cls.build(regions=[region])
        op.attributes |= parser.parse_optional_attr_dict()
        return op


@irdl_op_definition
class ForallOp(IRDLOperation):
    """
    A nest of loops whose iterations run at once, or in any order: `scf.forall (%i, %j) in (4, 8) { ... }`.

    Bounds are numbers or values; `= (lower) to (upper) step (step)` is the form with lower bounds or steps. `mapping`
    has the kind of processor that runs the iterations, one dim of it for each dim. Iterations write memory, or insert
    into tensors that they share: `shared_outs(%o = %t) -> (type)`, where each sees the tensor as it was before. The
    attribute `threads` says how many threads run them, from 1 to 1024; without it they run one after the other.
    """

    name = "scf.forall"

    dynamicLowerBound = var_operand_def(IndexType)
    dynamicUpperBound = var_operand_def(IndexType)
    dynamicStep = var_operand_def(IndexType)
    outputs = var_operand_def(TensorType)
    staticLowerBound = prop_def(DenseArrayBase.constr(i64))
    staticUpperBound = prop_def(DenseArrayBase.constr(i64))
    staticStep = prop_def(DenseArrayBase.constr(i64))
    mapping = opt_prop_def(ArrayAttr[DeviceMappingAttr])
    res = var_result_def(TensorType)

    region = region_def("single_block")

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    traits = traits_def(SingleBlockImplicitTerminator(InParallelOp), RecursiveMemoryEffect())

    def __init__(
        self,
        lower: Sequence[Bound],
        upper: Sequence[Bound],
        step: Sequence[Bound],
        outputs: Sequence[SSAValue],
        region: Region,
        mapping: Sequence[DeviceMappingAttr] = (),
    ):
        """A loop with this body, of which a terminator without insertions may be left out."""
        bounds = [split_dynamic_index_list(each, DYNAMIC_INDEX) for each in (lower, upper, step)]
        static = [DenseArrayBase.from_list(i64, numbers) for numbers, _ in bounds]
        super().__init__(
            operands=[*(values for _, values in bounds), list(outputs)],
            result_types=[[output.type for output in outputs]],
            properties={
                "staticLowerBound": static[0],
                "staticUpperBound": static[1],
                "staticStep": static[2],
                "mapping": ArrayAttr(mapping) if mapping else None,
            },
            regions=[region],
        )
        block = region.block
        if block.last_op is None or not block.last_op.has_trait(IsTerminator, value_if_unregistered=False):
            block.add_op(InParallelOp())

    @property
    def lower_bounds(self) -> list[Bound]:
        """By dim the first index."""
        return list(get_dynamic_index_list(self.staticLowerBound.get_values(), self.dynamicLowerBound, DYNAMIC_INDEX))

    @property
    def upper_bounds(self) -> list[Bound]:
        """By dim the index that ends it."""
        return list(get_dynamic_index_list(self.staticUpperBound.get_values(), self.dynamicUpperBound, DYNAMIC_INDEX))

    @property
    def steps(self) -> list[Bound]:
        """By dim the distance of two indices."""
        return list(get_dynamic_index_list(self.staticStep.get_values(), self.dynamicStep, DYNAMIC_INDEX))

    @property
    def indices(self) -> Sequence[BlockArgument]:
        """The index of an iteration in each dim."""
        return self.region.block.args[: len(self.staticUpperBound)]

    @property
    def first_output(self) -> int:
        """The number of the operand that is the first tensor that the iterations share."""
        return len(self.operands) - len(self.outputs)

    @property
    def shared(self) -> Sequence[BlockArgument]:
        """In the body: the tensors that the iterations share."""
        return self.region.block.args[len(self.staticUpperBound) :]

    @property
    def terminator(self) -> InParallelOp:
        """The end of an iteration."""
        last = self.region.block.last_op
        assert isinstance(last, InParallelOp)
        return last

    def verify_(self) -> None:
        rank = len(self.staticUpperBound)
        if len(self.staticLowerBound) != rank or len(self.staticStep) != rank:
            raise VerifyException(
                f"has {len(self.staticLowerBound)} lower bounds, {rank} upper bounds and {len(self.staticStep)} steps"
            )
        for title, static, dynamic in (
            ("lower bounds", self.staticLowerBound, self.dynamicLowerBound),
            ("upper bounds", self.staticUpperBound, self.dynamicUpperBound),
            ("steps", self.staticStep, self.dynamicStep),
        ):
            if (open_ones := list(static.get_values()).count(DYNAMIC_INDEX)) != len(dynamic):
                raise VerifyException(f"has {len(dynamic)} values for {open_ones} dynamic {title}")
        for step in self.staticStep.get_values():
            if step != DYNAMIC_INDEX and step <= 0:
                raise VerifyException(f"has the step {step}, and a step is positive")
        arguments = [arg.type for arg in self.region.block.args]
        expected: list[Attribute] = [*[IndexType()] * rank, *(output.type for output in self.outputs)]
        if arguments != expected:
            raise VerifyException(f"has arguments of its body of other types than {', '.join(map(str, expected))}")
        if [result.type for result in self.res] != [output.type for output in self.outputs]:
            raise VerifyException("has results of other types than the tensors that its iterations share")
        threads = self.attributes.get(THREADS)
        number = threads.value.data if isinstance(threads, IntegerAttr) else 0
        if threads is not None and not 1 <= number <= MOST_THREADS:
            raise VerifyException(f"has {THREADS} = {threads}, and a program has from 1 to {MOST_THREADS} threads")
        self._verify_mapping(rank)
        self._verify_insertions()

    def _verify_mapping(self, rank: int) -> None:
        if self.mapping is None:
            return
        mapping = list(self.mapping)
        if len(mapping) != rank:
            raise VerifyException(f"maps {len(mapping)} dims, and has {rank}")
        if len({type(each) for each in mapping}) > 1:
            raise VerifyException(f"maps its dims to several kinds of processor, {', '.join(map(str, mapping))}")
        if len(set(mapping)) < rank:
            raise VerifyException(f"maps two dims to the same, {', '.join(map(str, mapping))}")

    def _verify_insertions(self) -> None:
        terminator = self.region.block.last_op
        if not isinstance(terminator, InParallelOp):
            return
        for op in terminator.insertions:
            if op.dest not in self.shared:
                raise VerifyException("inserts into a tensor that is none of those that its iterations share")

    def print(self, printer: Printer) -> None:
        printer.print_string(" (")
        printer.print_list(self.indices, printer.print_ssa_value)
        printer.print_string(")")

        def bounds(values: Sequence[SSAValue], static: DenseArrayBase[IntegerType]) -> None:
            print_dynamic_index_list(
                printer,
                DYNAMIC_INDEX,
                values,
                static.get_values(),
                delimiter=Parser.Delimiter.PAREN,
            )

        if set(self.staticLowerBound.get_values()) <= {0} and set(self.staticStep.get_values()) <= {1}:
            printer.print_string(" in ")
            bounds(self.dynamicUpperBound, self.staticUpperBound)
        else:
            printer.print_string(" = ")
            bounds(self.dynamicLowerBound, self.staticLowerBound)
            printer.print_string(" to ")
            bounds(self.dynamicUpperBound, self.staticUpperBound)
            printer.print_string(" step ")
            bounds(self.dynamicStep, self.staticStep)
        if self.outputs:
            printer.print_string(" shared_outs(")
            printer.print_list(
                zip(self.shared, self.outputs, strict=True), lambda pair: print_assignment(printer, *pair)
            )
            printer.print_string(") -> (")
            printer.print_list(self.res.types, printer.print_attribute)
            printer.print_string(")")
        printer.print_string(" ")
        printer.print_region(
            self.region,
            print_entry_block_args=False,
            print_empty_block=False,
            print_block_terminators=bool(self.outputs),
        )
        attributes = dict(self.attributes) if self.mapping is None else {**self.attributes, "mapping": self.mapping}
        printer.print_op_attributes(dict(sorted(attributes.items())))

    @classmethod
    def parse(cls, parser: Parser) -> ForallOp:
        indices = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False).resolve(IndexType())
        )
        start = parser.pos
        if parser.parse_optional_keyword("in") is not None:
            lower: list[Bound] = [0] * len(indices)
            upper, step = _parse_bounds(parser), [1] * len(indices)
        else:
            parser.parse_punctuation("=")
            lower = _parse_bounds(parser)
            parser.parse_keyword("to")
            upper = _parse_bounds(parser)
            parser.parse_keyword("step")
            step = _parse_bounds(parser)
        if not len(indices) == len(lower) == len(upper) == len(step):
            parser.raise_error(f"expected {len(indices)} bounds and steps", start, parser.pos)
        outputs, arguments = _parse_shared(parser)
        region = parser.parse_region((*indices, *arguments))
        if not region.blocks:
            region.add_block(Block(arg_types=[arg.type for arg in (*indices, *arguments)]))
        op = cls(lower, upper, cast("Sequence[Bound]", step), outputs, region)
        attributes = parser.parse_optional_attr_dict()
        if (mapping := attributes.pop("mapping", None)) is not None:
            op.properties["mapping"] = mapping
        op.attributes |= attributes
        return op


def _parse_bounds(parser: Parser) -> list[Bound]:
    values, static = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX, delimiter=Parser.Delimiter.PAREN)
    resolved = [parser.resolve_operand(value, IndexType()) for value in values]
    return list(get_dynamic_index_list(static, resolved, DYNAMIC_INDEX))


def _parse_shared(parser: Parser) -> tuple[Sequence[SSAValue], Sequence[Parser.Argument]]:
    """`shared_outs(%o = %t) -> (type)`, if it is there: the tensors, and the arguments of the body."""
    start = parser.pos
    if parser.parse_optional_keyword("shared_outs") is None:
        return (), ()
    pairs: list[tuple[Parser.UnresolvedArgument, UnresolvedOperand]] = parser.parse_comma_separated_list(
        parser.Delimiter.PAREN, lambda: parse_assignment(parser)
    )
    parser.parse_punctuation("->")
    types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    outputs = parser.resolve_operands([value for _, value in pairs], types, start)
    return outputs, [arg.resolve(type) for (arg, _), type in zip(pairs, types, strict=True)]


def forall_around(op: Operation) -> ForallOp | None:
    """The innermost `scf.forall` around an op."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, ForallOp):
        parent = parent.parent_op()
    return parent


DIALECT = Dialect("scf", [*Scf.operations, ForallOp, InParallelOp], list(Scf.attributes))
"""xDSL's scf dialect with these operations."""
