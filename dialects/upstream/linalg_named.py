# SPDX-License-Identifier: Apache-2.0
"""
The named operations of linalg, of which xDSL 0.74 has a few: tables of how loops index operands, and what is computed.

A word of a table is an operand, and a letter of it a dimension that the loop of that letter indexes. A capital letter
is a dimension in space: of an output the loop over places; of the input the place where a window begins, and in it the
loop of the small letter, `Y * stride + y * dilation`. A point is a scalar. Loops stand in the order of the output's
letters, and after them, as reductions, in that of the other operands from the last one backwards.
See https://mlir.llvm.org/docs/Dialects/Linalg/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from xdsl.builder import Builder
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    AffineMapAttr,
    AnyFloat,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    FixedBitwidthType,
    FloatAttr,
    IntegerType,
    ShapedType,
    i1,
)
from xdsl.dialects.linalg.abstract_ops import NamedOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import BaseAttr, irdl_op_definition, opt_prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.rewriter import InsertPoint
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.type import get_element_type_or_self

from penstock.dialects.upstream.linalg_text import (
    BinaryFnAttr,
    TypeFn,
    TypeFnAttr,
    UnaryFnAttr,
    parse_operands,
    parse_results,
)

# What they compute


class _Body:
    """Appends scalar ops to the body of a named operation."""

    def __init__(self, block: Block, unsigned: bool):
        self._builder, self._unsigned = Builder(InsertPoint.at_end(block)), unsigned

    def emit(self, op: Operation) -> SSAValue:
        """Append an op, for its result."""
        return self._builder.insert(op).results[0]

    def cast(self, value: SSAValue, wanted: Attribute) -> SSAValue:
        """A number in another type."""
        found = value.type
        if found == wanted:
            return value
        wider = cast(FixedBitwidthType, wanted).bitwidth > cast(FixedBitwidthType, found).bitwidth
        if isinstance(found, AnyFloat) and isinstance(wanted, AnyFloat):
            return self.emit(arith.ExtFOp(value, wanted) if wider else arith.TruncFOp(value, wanted))
        if isinstance(found, AnyFloat):
            return self.emit((arith.FPToUIOp if self._unsigned else arith.FPToSIOp)(value, cast(IntegerType, wanted)))
        if isinstance(wanted, AnyFloat):
            return self.emit((arith.UIToFPOp if self._unsigned else arith.SIToFPOp)(value, wanted))
        if not wider:
            return self.emit(arith.TruncIOp(value, cast(IntegerType, wanted)))
        # A truth value is 0 or 1.
        extend = arith.ExtUIOp if self._unsigned or found == i1 else arith.ExtSIOp
        return self.emit(extend(value, cast(IntegerType, wanted)))

    def apply(self, function: str, *xs: SSAValue) -> SSAValue:
        """A function of the tables below, on numbers of one type."""
        if isinstance(xs[-1].type, AnyFloat):
            if function in ("square", "reciprocal"):
                one = arith.ConstantOp(FloatAttr(1.0, cast(AnyFloat, xs[0].type))) if function == "reciprocal" else None
                pair = (xs[0], xs[0]) if one is None else (self.emit(one), xs[0])
                return self.apply("mul" if one is None else "div", *pair)
            made = _OF_FLOATS.get(function)
        elif xs[-1].type == i1:
            made = _OF_TRUTH.get(function)
        else:
            made = _OF_INTEGERS.get(function)
        if made is None:
            raise VerifyException(f"{function} is not of elements of the type {xs[-1].type}")
        return self.emit(cast(Any, made)(*xs))


_OF_FLOATS: dict[str, type[Operation]] = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "div": arith.DivfOp,
    "max": arith.MaximumfOp,
    "min": arith.MinimumfOp,
    "max_signed": arith.MaximumfOp,
    "min_signed": arith.MinimumfOp,
    "powf": math.PowFOp,
    "exp": math.ExpOp,
    "log": math.LogOp,
    "abs": math.AbsFOp,
    "ceil": math.CeilOp,
    "floor": math.FloorOp,
    "negf": arith.NegfOp,
    "round": math.RoundOp,
    "sqrt": math.SqrtOp,
    "rsqrt": math.RsqrtOp,
    "tanh": math.TanhOp,
    "erf": math.ErfOp,
}
_OF_INTEGERS: dict[str, type[Operation]] = {
    "add": arith.AddiOp,
    "sub": arith.SubiOp,
    "mul": arith.MuliOp,
    "div": arith.DivSIOp,
    "div_unsigned": arith.DivUIOp,
    "max": arith.MaxSIOp,
    "min": arith.MinSIOp,
    "max_signed": arith.MaxSIOp,
    "min_signed": arith.MinSIOp,
    "max_unsigned": arith.MaxUIOp,
    "min_unsigned": arith.MinUIOp,
    "abs": math.AbsIOp,
}
_OF_TRUTH: dict[str, type[Operation]] = {"add": arith.OrIOp, "mul": arith.AndIOp}


def _product(body: _Body, xs: Sequence[SSAValue]) -> SSAValue:
    *factors, total = xs
    return body.apply("add", total, body.apply("mul", *(body.cast(each, total.type) for each in factors)))


def _product_of_differences(body: _Body, xs: Sequence[SSAValue]) -> SSAValue:
    """Of numbers from their zero points."""
    a, b, zero_of_a, zero_of_b = (body.cast(each, xs[-1].type) for each in xs[:-1])
    factors = body.apply("sub", a, zero_of_a), body.apply("sub", b, zero_of_b)
    return body.apply("add", xs[-1], body.apply("mul", *factors))


def _pooled(function: str) -> Compute:
    def compute(body: _Body, xs: Sequence[SSAValue]) -> SSAValue:
        return body.apply(function, xs[-1], body.cast(xs[0], xs[-1].type))

    return compute


def _elementwise(function: str) -> Compute:
    def compute(body: _Body, xs: Sequence[SSAValue]) -> SSAValue:
        return body.apply(function, *(body.cast(each, xs[-1].type) for each in xs[:-1]))

    return compute


def _selected(body: _Body, xs: Sequence[SSAValue]) -> SSAValue:
    return body.emit(arith.SelectOp(xs[0], xs[1], xs[2]))


Compute = Callable[[_Body, Sequence[SSAValue]], SSAValue]

# The tables

_PRODUCTS = """
    matmul                      mk kn mn
    matmul_transpose_a          km kn mn
    matmul_transpose_b          mk nk mn
    batch_matmul                bmk bkn bmn
    batch_matmul_transpose_a    bkm bkn bmn
    batch_matmul_transpose_b    bmk bnk bmn
    batch_reduce_matmul         bmk bkn mn
    matvec                      mk k m
    vecmat                      k kn n
    batch_matvec                bmk bk bm
    batch_vecmat                bk bkn bn
    dot                         k k .
    mmt4d                       mkpr nkqr mnpq
    batch_mmt4d                 bmkpr bnkqr bmnpq
    conv_1d                     X x X
    conv_2d                     YX yx YX
    conv_3d                     ZYX zyx ZYX
    conv_1d_nwc_wcf             nXc xcf nXf
    conv_1d_ncw_fcw             ncX fcx nfX
    conv_2d_nhwc_hwcf           nYXc yxcf nYXf
    conv_2d_nhwc_fhwc           nYXc fyxc nYXf
    conv_2d_nchw_fchw           ncYX fcyx nfYX
    conv_2d_ngchw_fgchw         ngcYX fgcyx ngfYX
    conv_2d_ngchw_gfchw         ngcYX gfcyx ngfYX
    conv_2d_nhwgc_gfhwc         nYXgc gfyxc nYXgf
    conv_3d_ndhwc_dhwcf         nZYXc zyxcf nZYXf
    conv_3d_ncdhw_fcdhw         ncZYX fczyx nfZYX
    depthwise_conv_1d_nwc_wc    nXc xc nXc
    depthwise_conv_1d_nwc_wcm   nXc xcm nXcm
    depthwise_conv_1d_ncw_cw    ncX cx ncX
    depthwise_conv_2d_nhwc_hwc  nYXc yxc nYXc
    depthwise_conv_2d_nhwc_hwcm nYXc yxcm nYXcm
    depthwise_conv_2d_nchw_chw  ncYX cyx ncYX
    depthwise_conv_3d_ndhwc_dhwc  nZYXc zyxc nZYXc
    depthwise_conv_3d_ndhwc_dhwcm nZYXc zyxcm nZYXcm
    depthwise_conv_3d_ncdhw_cdhw  ncZYX czyx ncZYX
"""
_OF_DIFFERENCES = """
    quantized_matmul              mk kn . . mn
    quantized_batch_matmul        bmk bkn . . bmn
    conv_2d_nhwc_hwcf_q           nYXc yxcf . . nYXf
    conv_2d_nhwc_fhwc_q           nYXc fyxc . . nYXf
    conv_2d_nchw_fchw_q           ncYX fcyx . . nfYX
    conv_2d_ngchw_gfchw_q         ngcYX gfcyx . . ngfYX
    conv_2d_nhwgc_gfhwc_q         nYXgc gfyxc . . nYXgf
    conv_3d_ndhwc_dhwcf_q         nZYXc zyxcf . . nZYXf
    depthwise_conv_2d_nhwc_hwc_q  nYXc yxc . . nYXc
    depthwise_conv_2d_nhwc_hwcm_q nYXc yxcm . . nYXcm
"""
_POOLS = """
    pooling_ncw    ncX x ncX       sum max
    pooling_nchw   ncYX yx ncYX    sum max
    pooling_nwc    nXc x nXc       sum max min max_unsigned min_unsigned
    pooling_nhwc   nYXc yx nYXc    sum max min max_unsigned min_unsigned
    pooling_ndhwc  nZYXc zyx nZYXc sum max min
"""
_ELEMENTWISE = """
    add=2 sub=2 mul=2 div=2 div_unsigned=2 max=2 min=2 powf=2
    exp=1 log=1 abs=1 ceil=1 floor=1 negf=1 reciprocal=1 round=1 sqrt=1 rsqrt=1 square=1 tanh=1 erf=1
"""


@dataclass(frozen=True)
class Form:
    """How loops index the operands of a named operation; None where each is indexed as the output is."""

    operands: tuple[str, ...] | None
    compute: Compute | None


def _maps(operands: Sequence[str], strides: Sequence[int], dilations: Sequence[int]) -> list[AffineMap]:
    spelled = ["" if word == "." else word for word in operands]
    loops = list(dict.fromkeys(spelled[-1] + "".join(c for word in reversed(spelled[:-1]) for c in word)))
    loops = [letter for letter in loops if letter in spelled[-1] or not letter.isupper()]
    space = [letter for letter in "ZYX" if letter in spelled[-1]]

    def place(letter: str, is_input: bool) -> AffineExpr:
        loop = AffineExpr.dimension(loops.index(letter))
        if not (is_input and letter.isupper()):
            return loop
        number = space.index(letter)
        return loop * strides[number] + AffineExpr.dimension(loops.index(letter.lower())) * dilations[number]

    last = len(spelled) - 1
    return [
        AffineMap(len(loops), 0, tuple(place(letter, index < last) for letter in word))
        for index, word in enumerate(spelled)
    ]


class TabledOp(NamedOperation):
    """A named operation of a table; its body is computed from it, and is no part of its text."""

    PRINT_ATTRS_IN_FRONT: ClassVar[bool] = True

    strides = opt_prop_def(BaseAttr(DenseIntOrFPElementsAttr))
    dilations = opt_prop_def(BaseAttr(DenseIntOrFPElementsAttr))
    cast = opt_prop_def(BaseAttr(TypeFnAttr))
    fun = opt_prop_def(BaseAttr(UnaryFnAttr) | BaseAttr(BinaryFnAttr))
    indexing_maps = opt_prop_def(BaseAttr(ArrayAttr))

    @classmethod
    def form(cls) -> Form:
        """Its line of the table."""
        return form_of(cls.name)

    def _numbers(self, attribute: DenseIntOrFPElementsAttr | None) -> list[int]:
        return [1, 1, 1] if attribute is None else [int(cast(int, each)) for each in attribute.get_values()]

    def get_default_indexing_maps(self) -> Sequence[AffineMap]:
        """Those of the table, unless the text has others."""
        if self.indexing_maps is not None:
            return [cast(AffineMapAttr, each).data for each in self.indexing_maps]
        if (operands := self.form().operands) is not None:
            return _maps(operands, self._numbers(self.strides), self._numbers(self.dilations))
        rank = len(cast(ShapedType, self.outputs[0].type).get_shape())
        shaped = [isinstance(value.type, ShapedType) for value in self.operands]
        return [AffineMap.identity(rank) if each else AffineMap(rank, 0, ()) for each in shaped]

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        """A loop that does not index the output is a reduction."""
        maps = self.get_default_indexing_maps()
        used = {dim for expr in maps[-1].results for dim in expr.used_dims()}
        kinds = (dim in used for dim in range(maps[-1].num_dims))
        return ArrayAttr(IteratorTypeAttr.parallel() if kind else IteratorTypeAttr.reduction() for kind in kinds)

    def verify_(self) -> None:
        if self.name in _WITHOUT_STEPS and (self.strides is not None or self.dilations is not None):
            raise VerifyException("has windows that are next to each other, without strides and dilations")
        super().verify_()

    @classmethod
    def region_of(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue], said: dict[str, Attribute]) -> Region:
        """The body for operands, by what its attributes say."""
        count, wanted = len(inputs) + len(outputs), cls.form().operands
        if wanted is not None and count != len(wanted):
            raise VerifyException(f"expects {len(wanted)} operands, and has {count}")
        kind, function = said.get("cast"), said.get("fun")
        block = Block(arg_types=[get_element_type_or_self(value.type) for value in (*inputs, *outputs)])
        body = _Body(block, isinstance(kind, TypeFnAttr) and kind.data is TypeFn.CAST_UNSIGNED)
        compute = cls.form().compute
        if compute is None:
            if not isinstance(function, UnaryFnAttr | BinaryFnAttr):
                raise VerifyException("expects the attribute fun")
            compute = _elementwise(str(function.data))
        block.add_op(YieldOp(compute(body, block.args)))
        return Region(block)

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        """The body for operands, without attributes."""
        return cls.region_of(inputs, outputs, {})

    @classmethod
    def parse(cls, parser: Parser) -> TabledOp:
        """Attributes, or `indexing_maps`, operands and the types of results."""
        start = parser.pos
        said = dict(parser.parse_optional_attr_dict())
        if parser.parse_optional_keyword("indexing_maps") is not None:
            parser.parse_punctuation("=")
            said["indexing_maps"] = parser.parse_attribute()
            said |= parser.parse_optional_attr_dict()
        inputs, outputs = parse_operands(parser, "ins"), parse_operands(parser, "outs")
        results = parse_results(parser)
        known = cls.get_irdl_definition().properties
        try:
            return cls.build(
                operands=(inputs, outputs),
                result_types=(results,),
                properties={name: value for name, value in said.items() if name in known},
                attributes={name: value for name, value in said.items() if name not in known},
                regions=(cls.region_of(inputs, outputs, said),),
            )
        except VerifyException as error:
            parser.raise_error(str(error), start, start + 1)

    def print(self, printer: Printer) -> None:
        """The same form."""
        if self.indexing_maps is not None:
            printer.print_string(" indexing_maps = ")
            printer.print_attribute(self.indexing_maps)
        super().print(printer)


def _forms() -> dict[str, Form]:
    found: dict[str, Form] = {}
    for table, compute in ((_PRODUCTS, _product), (_OF_DIFFERENCES, _product_of_differences)):
        for line in table.strip().splitlines():
            name, *operands = line.split()
            found[name] = Form(tuple(operands), compute)
    for line in _POOLS.strip().splitlines():
        name, *words = line.split()
        for kind in words[3:]:
            found[f"{name}_{kind}"] = Form(tuple(words[:3]), _pooled("add" if kind == "sum" else kind))
    for word in _ELEMENTWISE.split():
        name = word.partition("=")[0]
        found[name] = Form(None, _elementwise(name))
    for name in ("elemwise_unary", "elemwise_binary"):
        found[name] = Form(None, None)
    for name in ("fill", "copy"):
        found[name] = Form(None, lambda body, xs: body.cast(xs[0], xs[-1].type))
    found["select"] = Form(None, _selected)
    return found


def _class_of(name: str) -> type[TabledOp]:
    title = "".join(word.capitalize() for word in name.partition(".")[2].split("_"))
    body = {"name": name, "__module__": __name__, "__doc__": f"`{name}`"}
    return irdl_op_definition(type(f"{title}Op", (TabledOp,), body))


_WITHOUT_STEPS = ("linalg.conv_1d", "linalg.conv_2d", "linalg.conv_3d")
_FORMS = {f"linalg.{name}": form for name, form in _forms().items()}


def form_of(name: str) -> Form:
    """The line of a table that an operation has."""
    return _FORMS[name]


NAMED: dict[str, type[TabledOp]] = {name: _class_of(name) for name in _FORMS}
"""The operations of the tables, by name."""
