"""
A kernel as the planner of tiles would see it, sketched from the ops of a group without lowering them.

What is drawn is drawn as it will be lowered: contractions with the channels last, and elementwise ops of f32 that are
one scalar op, with numbers of the text in the bodies. Other elementwise ops are drawn as an op that stands for the one
in their formula that hardly a machine has; a group with one that this machine has, or with anything else (a pool, a
reduction, a transposition), has no sketch. Where factors are f16, what is stored so outside is widened, and the result
is narrowed if it will be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from xdsl.dialects import arith, func, math, tensor
from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, IndexType, TensorType, f16, f32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.passes.graph.fusion.nodes import splat
from penstock.passes.tensor.pointwise import Dims, dims, structured

Element = Callable[..., Operation]
FLOAT_BODIES: Mapping[type[Operation], Element] = {
    graph.AbsOp: math.AbsFOp,
    graph.AddOp: arith.AddfOp,
    graph.DivOp: arith.DivfOp,
    graph.ErfOp: math.ErfOp,
    graph.ExpOp: math.ExpOp,
    graph.FloorOp: math.FloorOp,
    graph.LogOp: math.LogOp,
    graph.MaxOp: arith.MaximumfOp,
    graph.MinOp: arith.MinimumfOp,
    graph.MulOp: arith.MulfOp,
    graph.NegOp: arith.NegfOp,
    graph.PowOp: math.PowFOp,
    graph.SqrtOp: math.SqrtOp,
    graph.SubOp: arith.SubfOp,
    graph.TanhOp: math.TanhOp,
}
"""The ops that are one scalar op."""
STAND_INS: Mapping[type[Operation], type[Operation]] = {
    graph.EluOp: math.ExpM1Op,
    graph.LeakyReluOp: arith.CmpfOp,
    graph.PreluOp: arith.CmpfOp,
    graph.SeluOp: math.ExpM1Op,
    graph.SigmoidOp: arith.NegfOp,
    graph.SoftplusOp: math.Log1pOp,
}
"""A scalar op in the formula of each op: a machine without it computes no more than pieces, and so none of it."""


class NoSketch(Exception):
    """The group holds something that is not drawn."""


class Sketch:
    """The kernel of some ops of a graph, in the order of their block; raises NoSketch."""

    def __init__(
        self,
        members: Sequence[Operation],
        halves: bool,
        is_half: Callable[[SSAValue], bool],
        computed: AbstractSet[str],
    ):
        """
        `halves` says whether factors are f16, `is_half` whether a value between kernels is; `computed` names the
        scalar ops that the machine has.
        """
        self._block = Block()
        self._halves = halves
        self._is_half = is_half
        self._computed = computed
        self._arguments: dict[tuple[SSAValue, Attribute], SSAValue] = {}
        self._values: dict[SSAValue, SSAValue] = {}
        self._own: set[SSAValue] = set()
        for op in members:
            self._values[op.results[0]] = self._draw(op)
        yielded = members[-1].results[0]
        result = self._values[yielded]
        if is_half(yielded):
            result = self._cast(result, arith.TruncFOp, f16)
        self._block.add_op(func.ReturnOp(result))
        types = self._block.arg_types, [result.type]
        self.kernel = func.FuncOp("sketch", types, Region(self._block), "private")

    def _draw(self, op: Operation) -> SSAValue:
        match op:
            case graph.ConvOp() if op.layout.data == "NHWC" and op.group.value.data == 1:
                return self._conv(op)
            case graph.GemmOp():
                m, n, k = dims(3)
                a, b = [k, m] if op.trans_a else [m, k], [n, k] if op.trans_b else [k, n]
                if op.alpha.value.data != 1 or (op.c is not None and op.beta.value.data != 1):
                    raise NoSketch
                product = self._contract(op, (op.a, a), (op.b, b), 1)
                return product if op.c is None else self._pointwise([product, op.c], op.result, arith.AddfOp)
            case graph.MatmulOp() if tensor_of(op.a).get_num_dims() > 1 and tensor_of(op.b).get_num_dims() > 1:
                *parallel, k = dims(tensor_of(op.result).get_num_dims() + 1)
                a = [*self._repeated(op.a, op.result, parallel, 2), parallel[-2], k]
                b = [*self._repeated(op.b, op.result, parallel, 2), k, parallel[-1]]
                return self._contract(op, (op.a, a), (op.b, b), 1)
            case graph.ClipOp() if self._is_f32(op.result):
                value: SSAValue = op.x
                for bound, body in ((op.min, arith.MaximumfOp), (op.max, arith.MinimumfOp)):
                    if bound is not None:
                        value = self._pointwise([value, bound.value.data], op.result, body)
                return value
            case graph.ReluOp() if self._is_f32(op.result):
                return self._pointwise([op.x, 0.0], op.result, arith.MaximumfOp)
            case _ if type(op) in FLOAT_BODIES and self._is_f32(op.results[0]):
                return self._pointwise(
                    [self._number(each) for each in op.operands], op.results[0], FLOAT_BODIES[type(op)]
                )
            case _ if type(op) in STAND_INS and self._is_f32(op.results[0]):
                scalar = STAND_INS[type(op)]
                if scalar.name in self._computed:
                    raise NoSketch
                type_ = [f32]
                return self._pointwise(
                    list(op.operands), op.results[0], lambda *each: scalar.create(operands=each, result_types=type_)
                )
            case _:
                raise NoSketch

    def _conv(self, op: graph.ConvOp) -> SSAValue:
        rank = len(op.kernel_shape)
        loops = dims(3 + 2 * rank)
        n, places, channel = loops[:1], loops[1 : 1 + rank], loops[1 + rank]
        window, inputs = loops[2 + rank : 2 + 2 * rank], loops[-1]
        steps = zip(places, op.strides.get_values(), window, op.dilations.get_values(), strict=True)
        read = [place * stride + inside * dilation for place, stride, inside, dilation in steps]
        pads = op.pads.get_values()
        border = [0, *pads[:rank], 0], [0, *pads[rank:], 0]
        product = self._contract(op, (op.x, [*n, *read, inputs]), (op.w, [*window, inputs, channel]), rank + 1, border)
        return product if op.b is None else self._pointwise([product, op.b], op.result, arith.AddfOp)

    def _contract(
        self,
        op: graph.ConvOp | graph.GemmOp | graph.MatmulOp,
        a: tuple[SSAValue, Dims],
        b: tuple[SSAValue, Dims],
        reductions: int,
        border: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> SSAValue:
        result = tensor_of(op.results[0])
        if result.element_type != f32:
            raise NoSketch
        factors = [self._argument(value, f16 if self._halves else f32) for value in (a[0], b[0])]
        if any(map(any, border)):
            factors[0] = self._padded(factors[0], *border)
        count = result.get_num_dims()
        zero = self._generic([], result, dims(count), 0, lambda block: self._constant(block, 0.0))

        def body(block: Block) -> SSAValue:
            wide: list[SSAValue] = []
            for each in block.args[:2]:
                wide.append(each)
                if each.type != f32:
                    block.add_op(widened := arith.ExtFOp(each, f32))
                    wide[-1] = widened.result
            block.add_op(product := arith.MulfOp(wide[0], wide[1]))
            block.add_op(total := arith.AddfOp(block.args[2], product))
            return total.result

        return self._generic([(factors[0], a[1]), (factors[1], b[1])], result, dims(count), reductions, body, zero)

    def _pointwise(self, operands: Sequence[SSAValue | float], result: SSAValue, scalar: Element) -> SSAValue:
        """The generic of a scalar op, numbers in its body."""
        type = tensor_of(result)
        loops = dims(type.get_num_dims())
        values = list(dict.fromkeys(each for each in operands if isinstance(each, SSAValue)))
        if not all(self._is_f32(value) for value in values):
            raise NoSketch
        read = [(self._value(value), self._repeated(value, result, loops, 0)) for value in values]

        def body(block: Block) -> SSAValue:
            of = dict(zip(values, block.args, strict=False))
            taken = [of[each] if isinstance(each, SSAValue) else self._constant(block, each) for each in operands]
            made = scalar(*taken)
            block.add_op(made)
            return made.results[0]

        return self._generic(read, type, loops, 0, body)

    def _generic(
        self,
        inputs: Sequence[tuple[SSAValue, Dims]],
        type: TensorType[Attribute],
        output: Dims,
        reductions: int,
        body: Callable[[Block], SSAValue],
        init: SSAValue | None = None,
    ) -> SSAValue:
        if init is None:
            self._block.add_op(empty := tensor.EmptyOp((), type))
            init = empty.tensor
        made = structured(inputs, (init, output), body, reductions=reductions)
        self._block.add_op(made)
        self._own.add(made.results[0])
        return made.results[0]

    def _cast(self, value: SSAValue, op_type: type[arith.ExtFOp | arith.TruncFOp], target: Attribute) -> SSAValue:
        shape = tensor_of(value).get_shape()
        loops = dims(len(shape))

        def body(block: Block) -> SSAValue:
            block.add_op(cast := op_type(block.args[0], target))  # pyright: ignore[reportArgumentType]
            return cast.result

        return self._generic([(value, loops)], TensorType(target, shape), loops, 0, body)

    def _value(self, of: SSAValue) -> SSAValue:
        """A value of the graph in the kernel, in its own type; one of the kernel is itself."""
        if of in self._own:
            return of
        if of not in self._values:
            stored = self._argument(of, f16 if self._is_half(of) else self._element(of))
            self._values[of] = self._cast(stored, arith.ExtFOp, f32) if self._is_half(of) else stored
        return self._values[of]

    def _argument(self, of: SSAValue, element: Attribute) -> SSAValue:
        """A value from outside as it is stored."""
        if (of, element) not in self._arguments:
            type = TensorType(element, tensor_of(of).get_shape())
            self._arguments[of, element] = self._block.insert_arg(type, len(self._block.args))
        return self._arguments[of, element]

    def _padded(self, value: SSAValue, low: Sequence[int], high: Sequence[int]) -> SSAValue:
        sizes = [sum(each) for each in zip(low, tensor_of(value).get_shape(), high, strict=True)]
        self._block.add_op(zero := arith.ConstantOp(FloatAttr(0.0, self._element(value))))  # pyright: ignore
        inside = Block([tensor.YieldOp(zero.result)], arg_types=[IndexType()] * len(sizes))
        widths = [DenseArrayBase.from_list(i64, list(each)) for each in (low, high)]
        type = TensorType(self._element(value), sizes)
        self._block.add_op(made := tensor.PadOp(value, (), (), Region(inside), widths[0], widths[1], type))
        return made.result

    def _repeated(self, value: SSAValue, result: SSAValue, loops: Dims, last: int) -> list[AffineExpr]:
        """How a value is indexed that broadcasts to the result, without its `last` dims."""
        sizes, whole = tensor_of(value).get_shape(), tensor_of(result).get_shape()
        offset = len(whole) - len(sizes)
        return [
            loops[offset + dim] if size == whole[offset + dim] else AffineExpr.constant(0)
            for dim, size in enumerate(sizes[: len(sizes) - last])
        ]

    def _constant(self, block: Block, number: float) -> SSAValue:
        block.add_op(made := arith.ConstantOp(FloatAttr(number, f32)))
        return made.result

    def _number(self, value: SSAValue) -> SSAValue | float:
        """The number that stands for a value in a body, if it is one of the text."""
        constant = splat(value)
        return value if constant is None else float(next(iter(constant.dense.iter_values())))  # pyright: ignore

    def _element(self, value: SSAValue) -> Attribute:
        return tensor_of(value).element_type

    def _is_f32(self, value: SSAValue) -> bool:
        return self._element(value) == f32
