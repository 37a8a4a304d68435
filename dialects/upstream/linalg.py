# SPDX-License-Identifier: Apache-2.0
"""
The linalg dialect with what xDSL 0.74 lacks of MLIR's: the text of `linalg.generic`, `linalg.reduce` of several
operands, `linalg.index` in any operation with a body, `linalg.map`, `linalg.softmax`, and the named operations of
`linalg_named`.

xDSL prints the types of several results in parentheses, as MLIR does, and reads them without; it asserts what
attributes are, and drops those of the first dictionary that it does not know. Here what is printed is read, types with
or without parentheses, and every fault has a place. See https://mlir.llvm.org/docs/Dialects/Linalg/#linalggeneric
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from xdsl.dialects.builtin import (
    I64,
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp, IndexOp, YieldOp
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    SameVariadicOperandSize,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.type import get_element_type_or_self, have_compatible_shape

from penstock.dialects.upstream import amend
from penstock.dialects.upstream.linalg_named import NAMED
from penstock.dialects.upstream.linalg_text import FUNCTIONS, parse_operands, parse_results


def _iterator(parser: Parser, attribute: Attribute, start: int) -> IteratorTypeAttr:
    if isinstance(attribute, IteratorTypeAttr):
        return attribute
    kinds = {str(kind): kind for kind in IteratorType}
    if isinstance(attribute, StringAttr) and attribute.data in kinds:
        return IteratorTypeAttr(kinds[attribute.data])
    parser.raise_error(f"an iterator type is one of {', '.join(kinds)}, not {attribute}", start, start + 1)


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
    inputs, outputs = parse_operands(parser, "ins"), parse_operands(parser, "outs")
    if parser.parse_optional_keyword("attrs") is not None:
        parser.parse_punctuation("=")
        traits |= parser.parse_optional_attr_dict()
    body = parser.parse_region()
    op = cls(inputs, outputs, body, maps, kinds, parse_results(parser), doc, library_call)
    op.attributes |= traits
    return op


setattr(GenericOp, "parse", classmethod(_parse))


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
        short = _parse_short(parser)
        inputs, inits = parse_operands(parser, "ins"), parse_operands(parser, "outs")
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        attributes = parser.parse_optional_attr_dict()
        # What is carried comes first in the operation.
        carried = range(len(inputs), len(inputs) + len(inits))
        return cls.build(
            operands=[inputs, inits],
            result_types=[_tensors(inits)],
            properties={"dimensions": DenseArrayBase.from_list(i64, dims)},
            attributes=attributes,
            regions=[_parse_body(parser, short, (*inputs, *inits), (*carried, *range(len(inputs))))],
        )


@irdl_op_definition
class MapOp(IRDLOperation):
    """A function of elements that stand at one place; https://mlir.llvm.org/docs/Dialects/Linalg/#linalgmap"""

    name = "linalg.map"

    inputs = var_operand_def(BaseAttr(MemRefType) | BaseAttr(TensorType))
    init = operand_def(BaseAttr(MemRefType) | BaseAttr(TensorType))
    res = var_result_def(TensorType)
    mapper = region_def("single_block")

    def verify_(self) -> None:
        types = [cast(TensorType, type) for type in (*self.inputs.types, self.init.type)]
        if len({type.get_shape() for type in types}) != 1:
            raise VerifyException("all operands have to be of one shape")
        if list(self.res.types) != _tensors([self.init]):
            raise VerifyException("has the type of its init as its result, if it is a tensor")
        elements, arguments = [type.element_type for type in types], [arg.type for arg in self.mapper.block.args]
        # Newer text has the element that is overwritten too.
        if arguments not in (elements, elements[:-1]):
            raise VerifyException("its body has the elements of its inputs as arguments")

    def print(self, printer: Printer) -> None:
        """The custom form."""
        for keyword, values in (("ins", self.inputs), ("outs", [self.init])):
            if values:
                printer.print_string(f" {keyword}(")
                printer.print_list(values, printer.print_operand)
                printer.print_string(" : ")
                printer.print_list([value.type for value in values], printer.print_attribute)
                printer.print_string(")")
        printer.print_op_attributes(self.attributes)
        printer.print_string("\n")
        with printer.in_parens():
            printer.print_list(self.mapper.block.args, printer.print_block_argument)
        printer.print_string(" ")
        printer.print_region(self.mapper, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> MapOp:
        """The custom form."""
        short = _parse_short(parser)
        inputs, (init,) = parse_operands(parser, "ins"), parse_operands(parser, "outs")
        attributes = parser.parse_optional_attr_dict()
        body = _parse_body(parser, short, inputs, range(len(inputs)))
        return cls.build(
            operands=[inputs, init], result_types=[_tensors([init])], attributes=attributes, regions=[body]
        )


@irdl_op_definition
class SoftmaxOp(IRDLOperation):
    """exp(x) over its sum along a dimension; https://mlir.llvm.org/docs/Dialects/Linalg/#linalgsoftmax"""

    name = "linalg.softmax"

    input = operand_def(BaseAttr(MemRefType) | BaseAttr(TensorType))
    output = operand_def(BaseAttr(MemRefType) | BaseAttr(TensorType))
    res = var_result_def(TensorType)
    dimension = prop_def(IntegerAttr[I64])

    assembly_format = (
        "attr-dict `dimension` `(` $dimension `)` `ins` `(` $input `:` type($input) `)`"
        " `outs` `(` $output `:` type($output) `)` (`->` type($res)^)?"
    )

    irdl_options = (ParsePropInAttrDict(),)

    def verify_(self) -> None:
        source, wanted = cast(TensorType, self.input.type), cast(TensorType, self.output.type)
        if not have_compatible_shape(source, wanted):
            raise VerifyException("input and output have to be of one shape")
        if not 0 <= self.dimension.value.data < len(source.get_shape()):
            raise VerifyException(f"there is no dimension {self.dimension.value.data}")


Short = tuple[type[Operation], dict[str, Attribute]]
"""The only operation of a body, and its attributes."""


def _parse_short(parser: Parser) -> Short | None:
    """The short form of a body that is one operation, `{ arith.addf }`."""
    if parser.parse_optional_punctuation("{") is None:
        return None
    start = parser.pos
    name = parser.parse_identifier("the name of an operation")
    if (kind := parser.ctx.get_optional_op(name)) is None:
        parser.raise_error(f'the operation "{name}" is not registered', start, parser.pos)
    attributes = dict(parser.parse_optional_attr_dict())
    parser.parse_punctuation("}")
    return kind, attributes


def _parse_body(parser: Parser, short: Short | None, values: Sequence[SSAValue], order: Sequence[int]) -> Region:
    """The body on the elements of values, which the operation of the short form takes in an order."""
    if short is None:
        return parser.parse_region(parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument))
    kind, attributes = short
    block = Block(arg_types=[get_element_type_or_self(value.type) for value in values])
    # The result has the type of the operands: no other operation has a short form.
    made = kind.create(
        operands=[block.args[index] for index in order],
        result_types=[block.args[0].type],
        properties={name: value for name, value in attributes.items() if name in _properties(kind)},
        attributes={name: value for name, value in attributes.items() if name not in _properties(kind)},
    )
    block.add_ops([made, YieldOp(made.results[0])])
    return Region(block)


def _properties(kind: type[Operation]) -> Collection[str]:
    return kind.get_irdl_definition().properties if issubclass(kind, IRDLOperation) else ()


_OURS = {**NAMED, **{op.name: op for op in (ReduceOp, MapOp, SoftmaxOp)}}
DIALECT = Dialect(
    "linalg",
    [*(op for op in Linalg.operations if op.name not in _OURS), *_OURS.values()],
    [*Linalg.attributes, *FUNCTIONS],
)
"""xDSL's linalg dialect with the named operations of our tables, `linalg.map`, `linalg.reduce` and `linalg.softmax`."""
