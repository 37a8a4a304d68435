"""
The linalg dialect with what xDSL 0.74 lacks of MLIR's: the text of `linalg.generic`, `linalg.reduce` of several
operands, `linalg.index` in any operation with a body, the `cast` of named operations, and strides and dilations that
are not written.

xDSL prints the types of several results in parentheses, as MLIR does, and reads them without; it asserts what
attributes are, and drops those of the first dictionary that it does not know. Here what is printed is read, types with
or without parentheses, and every fault has a place. See https://mlir.llvm.org/docs/Dialects/Linalg/#linalggeneric
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    DenseIntElementsAttr,
    DenseIntOrFPElementsAttr,
    MemRefType,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg.abstract_ops import ConvOperation, PoolingOperation
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import CopyOp, GenericOp, IndexOp, MatmulOp
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, OpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    SameVariadicOperandSize,
    irdl_attr_definition,
    irdl_op_definition,
    prop_def,
    region_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.str_enum import StrEnum

from penstock.dialects.upstream import amend


def _iterator(parser: Parser, attribute: Attribute, start: int) -> IteratorTypeAttr:
    if isinstance(attribute, IteratorTypeAttr):
        return attribute
    kinds = {str(kind): kind for kind in IteratorType}
    if isinstance(attribute, StringAttr) and attribute.data in kinds:
        return IteratorTypeAttr(kinds[attribute.data])
    parser.raise_error(f"an iterator type is one of {', '.join(kinds)}, not {attribute}", start, start + 1)


def _operands(parser: Parser, keyword: str) -> Sequence[SSAValue]:
    """The operands `keyword(%a, %b : t, t)`, if the keyword is there."""
    if parser.parse_optional_keyword(keyword) is None:
        return ()
    with parser.in_parens():
        if parser.parse_optional_punctuation(":") is not None:
            return ()
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        start = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(names, types, start)


def _results(parser: Parser) -> Sequence[Attribute]:
    if parser.parse_optional_punctuation("->") is None:
        return ()
    listed = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if listed is not None:
        return listed
    return parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)


def _parse(cls: type[GenericOp], parser: Parser) -> GenericOp:
    start = parser.pos
    traits = parser.parse_optional_attr_dict()
    maps, iterators = traits.pop("indexing_maps", None), traits.pop("iterator_types", None)
    doc, library_call = traits.pop("doc", None), traits.pop("library_call", None)
    if not isa(maps, ArrayAttr[AffineMapAttr]):
        parser.raise_error("expected indexing_maps, a list of affine maps", start, parser.pos)
    if not isa(iterators, ArrayAttr):
        parser.raise_error("expected iterator_types, a list of strings", start, parser.pos)
    if not isinstance(doc, StringAttr | None) or not isinstance(library_call, StringAttr | None):
        parser.raise_error("doc and library_call are strings", start, parser.pos)
    kinds = [_iterator(parser, iterator, start) for iterator in iterators]
    inputs, outputs = _operands(parser, "ins"), _operands(parser, "outs")
    if parser.parse_optional_keyword("attrs") is not None:
        parser.parse_punctuation("=")
        traits |= parser.parse_optional_attr_dict()
    body = parser.parse_region()
    op = cls(inputs, outputs, body, maps, kinds, _results(parser), doc, library_call)
    op.attributes |= traits
    return op


setattr(GenericOp, "parse", classmethod(_parse))


# Named operations


class TypeFn(StrEnum):
    """How a named operation casts its operands."""

    CAST_SIGNED = "cast_signed"
    CAST_UNSIGNED = "cast_unsigned"


@irdl_attr_definition
class TypeFnAttr(EnumAttribute[TypeFn], OpaqueSyntaxAttribute):
    """How a named operation casts its operands to the type of its accumulator."""

    name = "linalg.type_fn"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TypeFn:
        """The name in angle brackets."""
        with parser.in_angle_brackets():
            return super().parse_parameter(parser)

    def print_parameter(self, printer: Printer) -> None:
        """The name in angle brackets."""
        with printer.in_angle_brackets():
            super().print_parameter(printer)


def _ones(op: IRDLOperation) -> Attribute:
    """Of the two dims in space that every convolution and pooling of xDSL has."""
    return DenseIntElementsAttr.from_list(TensorType(i64, [2]), [1, 1])


for _op in Linalg.operations:
    if issubclass(_op, ConvOperation | PoolingOperation):
        amend.optional_property(_op, "strides", BaseAttr(DenseIntOrFPElementsAttr), _ones)
        amend.optional_property(_op, "dilations", BaseAttr(DenseIntOrFPElementsAttr), _ones)
for _op in (MatmulOp, CopyOp):
    amend.optional_property(_op, "cast", BaseAttr(TypeFnAttr))


def _check_parent(op: IndexOp) -> None:
    parent = op.parent_op()
    if parent is None or not parent.name.startswith("linalg."):
        raise VerifyException("'linalg.index' expects parent op 'linalg.generic'")


amend.without_trait(IndexOp, HasParent)
amend.check(IndexOp, _check_parent)


def _tensors(values: Sequence[SSAValue]) -> list[Attribute]:
    return [type for type in (value.type for value in values) if isa(type, TensorType)]


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Reductions of dims, of several tensors of one shape at once; https://mlir.llvm.org/docs/Dialects/Linalg/#linalgreduce"""

    name = "linalg.reduce"

    inputs = var_operand_def(BaseAttr(MemRefType) | BaseAttr(TensorType))
    inits = var_operand_def(BaseAttr(MemRefType) | BaseAttr(TensorType))
    res = var_result_def(TensorType)
    dimensions = prop_def(DenseArrayBase.constr(i64))
    combiner = region_def("single_block")

    irdl_options = (SameVariadicOperandSize(),)

    def verify_(self) -> None:
        dims, inputs, inits = self.dimensions.get_values(), self.inputs.types, self.inits.types
        if not inputs:
            raise VerifyException("expected at least one input")
        shapes = [cast(TensorType, type).get_shape() for type in (*inputs, *inits)]
        count = len(inputs)
        if len(set(shapes[:count])) != 1 or len(set(shapes[count:])) != 1:
            raise VerifyException("all inputs have to be of one shape, and all inits")
        if list(dims) != sorted(set(dims)) or any(not 0 <= dim < len(shapes[0]) for dim in dims):
            raise VerifyException(f"dimensions {list(dims)} are not dims of {inputs[0]} in ascending order")
        kept = [size for dim, size in enumerate(shapes[0]) if dim not in dims]
        if len(kept) != len(shapes[count]):
            raise VerifyException("Output rank must equal input rank minus number of dimensions being reduced over")
        for dim, (size, other) in enumerate(zip(kept, shapes[count], strict=True)):
            if size != other:
                raise VerifyException(f"{size} elements are reduced to {other} along output dimension {dim}")
        wanted = _tensors(self.inits)
        if list(self.res.types) != wanted or len(wanted) not in (0, count):
            raise VerifyException("has the types of its inits as results, if they are tensors")
        elements = [cast(TensorType, type).element_type for type in (*inputs, *inits)]
        if [arg.type for arg in self.combiner.block.args] != elements:
            raise VerifyException("its body has the elements of inputs and inits as arguments")

    def print(self, printer: Printer) -> None:
        """The custom form."""
        for keyword, values in (("ins", self.inputs), ("outs", self.inits)):
            printer.print_string(f" {keyword}(")
            printer.print_list(values, printer.print_operand)
            printer.print_string(" : ")
            printer.print_list(values.types, printer.print_attribute)
            printer.print_string(")")
        printer.print_string(" dimensions = [")
        printer.print_list(self.dimensions.get_values(), printer.print_int)
        printer.print_string("] ")
        printer.print_op_attributes(self.attributes)
        printer.print_string("\n")
        with printer.in_parens():
            printer.print_list(self.combiner.block.args, printer.print_block_argument)
        printer.print_string(" ")
        printer.print_region(self.combiner, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> ReduceOp:
        """The custom form."""
        inputs, inits = _operands(parser, "ins"), _operands(parser, "outs")
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        attributes = parser.parse_optional_attr_dict()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        return cls.build(
            operands=[inputs, inits],
            result_types=[_tensors(inits)],
            properties={"dimensions": DenseArrayBase.from_list(i64, dims)},
            attributes=attributes,
            regions=[parser.parse_region(arguments)],
        )


_OURS = {ReduceOp.name: ReduceOp}
DIALECT = Dialect("linalg", [_OURS.get(op.name, op) for op in Linalg.operations], [*Linalg.attributes, TypeFnAttr])
"""xDSL's linalg dialect with our `linalg.reduce` in place of its own."""
