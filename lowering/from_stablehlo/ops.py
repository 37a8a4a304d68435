"""What each operation of StableHLO is as ops of the graph."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    IntegerType,
    Signedness,
    StringAttr,
    i32,
    i64,
)
from xdsl.ir import Attribute

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import Tensor, tensor_of
from penstock.dialects.graph.base import integer_bounds, is_bool, is_float
from penstock.dialects.weights import Array
from penstock.lowering.from_stablehlo.syntax import HloOp
from penstock.passes.graph.terms import Term
from penstock.runtime.interpreter.graph import evaluate_op


class Unsupported(Exception):
    """An operation cannot be imported; the message says what about it."""


Conversion: TypeAlias = Callable[..., "Term | Sequence[Term]"]
"""From the builder, an operation and its operands to its results."""
ConversionT = TypeVar("ConversionT", bound=Conversion)

CONVERSIONS: dict[str, Conversion] = {}
"""By the name of the operation."""


def converts(*names: str) -> Callable[[ConversionT], ConversionT]:
    """Register the decorated function for operations of StableHLO, or of CHLO with their whole name."""

    def register(conversion: ConversionT) -> ConversionT:
        CONVERSIONS.update({name if "." in name else f"stablehlo.{name}": conversion for name in names})
        return conversion

    return register


# Elements.

_FUNCTIONS = """
    abs=abs add=add ceil=ceil cosine=cos divide=div exponential=exp floor=floor log=log logistic=sigmoid multiply=mul
    negate=neg power=pow round_nearest_even=round sign=sign sine=sin sqrt=sqrt subtract=sub tan=tan tanh=tanh
    chlo.erf=erf chlo.acos=acos chlo.acosh=acosh chlo.asin=asin chlo.asinh=asinh chlo.atan=atan chlo.atanh=atanh
    chlo.cosh=cosh chlo.sinh=sinh chlo.tan=tan
"""
"""Operations that are ops by another name."""


def _called(function: str) -> Conversion:
    def convert(code: Any, op: HloOp, *xs: Term) -> Term:
        return xs[0].apply(function, *xs[1:])

    return convert


for _pair_of_names in _FUNCTIONS.split():
    _name, _, _function = _pair_of_names.partition("=")
    converts(_name)(_called(_function))


@converts("maximum", "minimum", "and", "or", "xor", "not")
def _logical(code: Any, op: HloOp, *xs: Term) -> Term:
    """Of truth values, and of the bits of integers."""
    word, x = op.short, xs[0]
    if word in ("maximum", "minimum"):
        if is_bool(x.element_type):
            return x.apply("or" if word == "maximum" else "and", xs[1])
        return x.apply(word[:3], xs[1])
    if is_bool(x.element_type):
        return x.equal(xs[1]).apply("not") if word == "xor" else x.apply(word, *xs[1:])
    if word == "not":
        return x.apply("bitwise_xor", code.array(np.invert(np.zeros((), numpy_dtype(x.element_type))), "ones"))
    return x.apply(f"bitwise_{word}", xs[1])


@converts("rsqrt")
def _rsqrt(code: Any, op: HloOp, x: Term) -> Term:
    return x.apply("sqrt").apply("reciprocal")


@converts("exponential_minus_one")
def _exponential_minus_one(code: Any, op: HloOp, x: Term) -> Term:
    """Of what is negative an ELU; else exp(x) (1 - exp(-x))."""
    return (x < 0).where(x.apply("elu"), -(-x).apply("elu") * x.apply("exp"))


@converts("log_plus_one")
def _log_plus_one(code: Any, op: HloOp, x: Term) -> Term:
    """What is lost when 1 is added is put right by a quotient: Kahan's formula, Higham, "Accuracy", problem 1.5."""
    whole = x + 1
    quotient = whole.apply("log") * x / (whole - 1)
    return whole.equal(1).where(x, (abs(x) < math.inf).where(quotient, whole.apply("log")))


@converts("shift_left", "shift_right_arithmetic", "shift_right_logical")
def _shift(code: Any, op: HloOp, x: Term, by: Term) -> Term:
    """A logical shift is one of integers without a sign, an arithmetic one of integers with a sign."""
    element = x.element_type
    if op.short == "shift_left":
        return x.apply("shift_left", by)
    signedness = Signedness.UNSIGNED if op.short == "shift_right_logical" else Signedness.SIGNLESS
    plain = IntegerType(8 * numpy_dtype(element).itemsize, signedness)
    if plain == element:
        return x.apply("shift_right", by)
    x, by = (each.emit(graph.BitcastOp(each.value, plain)) for each in (x, by))
    return x.emit(graph.BitcastOp(x.apply("shift_right", by).value, element))


@converts("chlo.square")
def _square(code: Any, op: HloOp, x: Term) -> Term:
    return x * x


@converts("remainder")
def _remainder(code: Any, op: HloOp, a: Term, b: Term) -> Term:
    """With the sign of the dividend."""
    return a.apply("mod", b) if is_float(a.element_type) else a - a / b * b


@converts("clamp")
def _clamp(code: Any, op: HloOp, low: Term, x: Term, high: Term) -> Term:
    return x.apply("max", low).apply("min", high)


@converts("is_finite")
def _is_finite(code: Any, op: HloOp, x: Term) -> Term:
    return abs(x) < math.inf


@converts("select")
def _select(code: Any, op: HloOp, condition: Term, a: Term, b: Term) -> Term:
    return condition.where(a, b)


@converts("convert")
def _convert(code: Any, op: HloOp, x: Term) -> Term:
    return x.cast(_result(op).element_type)


@converts("bitcast_convert")
def _bitcast(code: Any, op: HloOp, x: Term) -> Term:
    return x.emit(graph.BitcastOp(x.value, _result(op).element_type))


@converts("compare")
def _compare(code: Any, op: HloOp, a: Term, b: Term) -> Term:
    direction, *kind = _words(op)
    if kind == ["TOTALORDER"]:
        raise Unsupported("in the total order of floats")
    if is_bool(a.element_type):
        a, b = a.cast(i32), b.cast(i32)
    match direction:
        case "EQ":
            return a.equal(b)
        case "NE":
            return a.equal(b).apply("not")
        case "LT":
            return a.apply("less", b)
        case "GT":
            return a.apply("greater", b)
        case "LE":
            return a.apply("less", b) | a.equal(b)
        case _:
            return a.apply("greater", b) | a.equal(b)


# Places.


@converts("constant")
def _constant(code: Any, op: HloOp) -> Term:
    value = op.get("value")
    if not isinstance(value, DenseIntOrFPElementsAttr):
        raise Unsupported(f"with the value {value}")
    (array,) = graph_values(cast("graph.Dense", value))
    return code.array(array, "constant")


def graph_values(value: graph.Dense) -> list[Array]:
    """The elements of an attribute."""
    return [np.asarray(each) for each in evaluate_op(graph.ConstantOp(value), [], None)]


@converts("iota")
def _iota(code: Any, op: HloOp) -> Term:
    result, dim = _result(op), _int(op, "dim", "iota_dimension")
    shape = result.get_shape()
    numbers = np.arange(shape[dim]).astype(numpy_dtype(result.element_type))
    line = code.array(numbers.reshape([-1 if each == dim else 1 for each in range(len(shape))]), "iota")
    return line.expand(shape)


@converts("broadcast_in_dim")
def _broadcast_in_dim(code: Any, op: HloOp, x: Term) -> Term:
    result, dims = _result(op).get_shape(), _ints(op, "dims", "broadcast_dimensions")
    if not dims:
        return x.expand(result)
    order = sorted(range(len(dims)), key=lambda dim: dims[dim])
    x = x.transpose(order)
    sizes = iter(x.shape)
    return x.reshape([next(sizes) if dim in dims else 1 for dim in range(len(result))]).expand(result)


@converts("reshape")
def _reshape(code: Any, op: HloOp, x: Term) -> Term:
    return x.reshape(_result(op).get_shape())


@converts("transpose")
def _transpose(code: Any, op: HloOp, x: Term) -> Term:
    return x.transpose(_ints(op, "dims", "permutation"))


@converts("reverse")
def _reverse(code: Any, op: HloOp, x: Term) -> Term:
    return x.reversed(_ints(op, "dims", "dimensions"))


@converts("concatenate")
def _concatenate(code: Any, op: HloOp, *xs: Term) -> Term:
    return code.emit(graph.ConcatOp([x.value for x in xs], axis=_int(op, "dim", "dimension")))


@converts("slice")
def _slice(code: Any, op: HloOp, x: Term) -> Term:
    ranges = op.get("ranges")
    if ranges is None:
        starts, steps = _ints(op, "start_indices"), _ints(op, "strides")
    else:
        rows = [_numbers(each) for each in cast(ArrayAttr[Attribute], ranges)]
        starts, steps = [row[0] for row in rows], [row[2] for row in rows]
    return x.slice(starts, _result(op).get_shape(), steps)


@converts("pad")
def _pad(code: Any, op: HloOp, x: Term, value: Term) -> Term:
    low, high, inner = (
        _ints(op, *names)
        for names in (("low", "edge_padding_low"), ("high", "edge_padding_high"), ("interior", "interior_padding"))
    )
    number = code.known(value)
    if number is None:
        raise Unsupported("with a value that is known only when the program runs")
    if any(inner):
        if number != 0:
            raise Unsupported(f"with {number} between the elements")
        x = x.spread([each + 1 for each in inner])
    return x.padded(low, high, float(number))


def _clamped(code: Any, starts: Sequence[Term], shape: Sequence[int], sizes: Sequence[int]) -> list[Term]:
    """Where a slice begins that lies inside."""
    return [
        start.cast(i64).apply("max", 0).apply("min", extent - size)
        for start, extent, size in zip(starts, shape, sizes, strict=True)
    ]


@converts("dynamic_slice")
def _dynamic_slice(code: Any, op: HloOp, x: Term, *starts: Term) -> Term:
    sizes = _result(op).get_shape()
    for axis, start in enumerate(_clamped(code, starts, x.shape, sizes)):
        if (known := code.known(start)) is not None:
            x = x.cut(axis, int(known), sizes[axis])
            continue
        places = code.array(np.arange(sizes[axis]), "places") + start
        x = x.emit(graph.GatherOp(x.value, places.value, axis=axis))
    return x


@converts("dynamic_update_slice")
def _dynamic_update_slice(code: Any, op: HloOp, x: Term, update: Term, *starts: Term) -> Term:
    """Where all is known, the parts around the update; else a scatter."""
    shape, sizes = x.shape, update.shape
    begins = _clamped(code, starts, shape, sizes)
    known = [code.known(begin) for begin in begins]
    part = [axis for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)) if extent != size]
    if len(part) == 1 and (found := known[part[0]]) is not None:
        axis, first = part[0], int(found)
        last = first + sizes[axis]
        before = [x.cut(axis, 0, first).value] if first else []
        after = [x.cut(axis, last, shape[axis] - last).value] if last < shape[axis] else []
        return code.emit(graph.ConcatOp([*before, update.value, *after], axis=axis))
    if not part:
        return update
    rows: list[Term] = []
    for axis, begin in enumerate(begins):
        places = code.array(np.arange(sizes[axis]), "places") + begin
        rows.append(places.reshape([-1 if dim == axis else 1 for dim in range(len(shape))]).expand(sizes))
    index = code.emit(graph.ConcatOp([row.reshape([*sizes, 1]).value for row in rows], axis=len(sizes)))
    return code.emit(graph.ScatterNdOp(x.value, index.value, update.value))


@converts("gather")
def _gather(code: Any, op: HloOp, x: Term, indices: Term) -> Term:
    """Of parts that are one index wide in the dimensions that are looked up, and whole in all others."""
    said = str(op.get("dimension_numbers"))
    offset, collapsed, mapped, batching = (
        _listed(said, name)
        for name in ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims")
    )
    vector = _listed(said, "index_vector_dim") or [0]
    sizes, result = _ints(op, "slice_sizes"), _result(op).get_shape()
    whole = all(size == (1 if dim in mapped else x.shape[dim]) for dim, size in enumerate(sizes))
    rank = len(indices.shape)
    if batching or not whole or collapsed != sorted(mapped) or vector != [rank - 1]:
        raise Unsupported(f"of parts that are not whole: {said}")
    first = [*mapped, *(dim for dim in range(len(x.shape)) if dim not in mapped)]
    # What is outside is moved inside.
    limits = np.array([x.shape[dim] - 1 for dim in mapped])
    inside = indices.cast(i64).apply("max", 0).apply("min", code.array(limits, "limits"))
    found = code.emit(graph.GatherNdOp(x.transpose(first).value, inside.value))
    batch = [dim for dim in range(len(result)) if dim not in offset]
    order = [*batch, *offset]
    return found.transpose([order.index(dim) for dim in range(len(result))])


# Products.


@converts("dot_general", "dot")
def _dot_general(code: Any, op: HloOp, a: Term, b: Term) -> Term:
    """A product of matrices: the batch first, then what is left of the one side, and of the other."""
    if op.short == "dot":
        batch, contracted = (list[int](), list[int]()), ([len(a.shape) - 1], [0])
    elif (generic := op.get("dot_dimension_numbers")) is not None:
        text = str(generic)
        batch, contracted = (
            (_listed(text, f"lhs_{what}_dimensions"), _listed(text, f"rhs_{what}_dimensions"))
            for what in ("batching", "contracting")
        )
    else:
        batch, contracted = _pair(op, "batching_dims"), _pair(op, "contracting_dims")
    result = _result(op)
    sides: list[Term] = []
    for x, of_batch, of_sum, is_left in ((a, batch[0], contracted[0], True), (b, batch[1], contracted[1], False)):
        free = [dim for dim in range(len(x.shape)) if dim not in of_batch and dim not in of_sum]
        order = [*of_batch, *free, *of_sum] if is_left else [*of_batch, *of_sum, *free]
        rows, inner = (math.prod(x.shape[dim] for dim in dims) for dims in (free, of_sum))
        sizes = [x.shape[dim] for dim in of_batch]
        sides.append(x.transpose(order).reshape([*sizes, *((rows, inner) if is_left else (inner, rows))]))
    element = result.element_type
    accumulator = None if element == a.element_type else element
    found = code.emit(graph.MatmulOp(sides[0].value, sides[1].value, accumulator=accumulator))
    return found.reshape(result.get_shape())


@converts("convolution")
def _convolution(code: Any, op: HloOp, x: Term, w: Term) -> Term:
    numbers, window = op.get("dim_numbers"), op.get("window")
    if numbers is None or _int(op, "batch_group_count", default=1) != 1:
        raise Unsupported("in groups of the batch" if numbers is not None else "in generic form")
    images, filters, results = ([str(_plain(each)) for each in _items(side)] for side in _items(numbers))
    rank = len(images) - 2
    space = [str(dim) for dim in range(rank)]
    said: dict[str, Attribute] = cast(Any, window).data if window is not None else {}
    ones = [1] * rank
    strides, spread, dilations = (
        _numbers(said[name]) if name in said else ones for name in ("stride", "lhs_dilate", "rhs_dilate")
    )
    pads = [_numbers(each) for each in _items(said["pad"])] if "pad" in said else [[0, 0]] * rank
    backwards = [
        dim
        for dim, each in enumerate(_items(said["reverse"]) if "reverse" in said else [])
        if _plain(each) in (1, "true")
    ]
    x = x.transpose([images.index(letter) for letter in ("b", "f", *space)]).spread([1, 1, *spread])
    w = w.transpose([filters.index(letter) for letter in ("o", "i", *space)])
    w = w.reversed([dim + 2 for dim in backwards])
    low, high = ([pair[side] for pair in pads] for side in (0, 1))
    if min(*low, *high) < 0:
        x, low, high = x.padded([0, 0, *low], [0, 0, *high]), [0] * rank, [0] * rank
    element = _result(op).element_type
    y = code.emit(
        graph.ConvOp(
            x.value,
            w.value,
            strides=strides,
            pads=[*low, *high],
            dilations=dilations,
            group=_int(op, "feature_group_count", default=1),
            accumulator=None if element == x.element_type else element,
        )
    )
    return y.transpose([["b", "f", *space].index(letter) for letter in results])


# Reductions.

_REDUCTIONS = {
    "add": (graph.ReduceSumOp, "add"),
    "maximum": (graph.ReduceMaxOp, "max"),
    "minimum": (graph.ReduceMinOp, "min"),
    "multiply": (graph.ReduceProdOp, "mul"),
}


def _reducer(op: HloOp) -> str:
    """The operation by which two values are combined."""
    if (named := op.get("reducer")) is not None:
        return str(_plain(named)).partition(".")[2]
    if len(op.results) == 1 and len(inner := list(op.bodies[0].block.ops)) == 2:
        combined = inner[0]
        if set(combined.operands) == set(op.bodies[0].block.args) and inner[1].operands[0] is combined.results[0]:
            return combined.name.partition(".")[2]
    raise Unsupported("by more than one operation on one value")


@converts("reduce")
def _reduce(code: Any, op: HloOp, *operands: Term) -> Term:
    word = _reducer(op)
    x, start = operands
    axes = _ints(op, "dimensions")
    element = x.element_type
    if is_bool(element) and word in ("and", "or"):
        total, combine = (graph.ReduceMinOp, "min") if word == "and" else (graph.ReduceMaxOp, "max")
        x, start = x.cast(i32), start.cast(i32)
    elif word in _REDUCTIONS:
        total, combine = _REDUCTIONS[word]
    else:
        raise Unsupported(f"by {word}")
    found = code.emit(total(x.value, axes=axes, keepdims=False)) if axes else x
    if not _is_neutral(code.known(start), combine, x.element_type):
        found = found.apply(combine, start)
    return found.cast(element)


def _is_neutral(start: Array | None, combine: str, element: Attribute) -> bool:
    """Whether combining with a number changes nothing."""
    if start is None:
        return False
    bounds = integer_bounds(element)
    low, high = (-math.inf, math.inf) if bounds is None else (bounds[0], bounds[-1])
    return float(start) == float({"add": 0, "mul": 1, "max": low, "min": high}[combine])


@converts("reduce_window")
def _reduce_window(code: Any, op: HloOp, x: Term, start: Term) -> Term:
    """The largest or the sum of each window: a pool, or a convolution with ones, over the dimensions that it spans."""
    word, rank = _reducer(op), len(x.shape)
    if word not in ("maximum", "add") or not is_float(x.element_type):
        raise Unsupported(f"by {word} of {x.element_type}")
    if not _is_neutral(code.known(start), _REDUCTIONS[word][1], x.element_type):
        raise Unsupported("that starts with another value")
    ones = [1] * rank
    sizes = _ints(op, "window_dimensions")
    steps, apart, inside = (
        _ints(op, name, default=ones) for name in ("window_strides", "window_dilations", "base_dilations")
    )
    if inside != ones:
        raise Unsupported("of elements that are spread")
    padding = op.get("padding")
    pads = np.zeros((rank, 2), np.int64) if padding is None else graph_values(cast("graph.Dense", padding))[0]
    spans = [dim for dim in range(rank) if sizes[dim] != 1 or steps[dim] != 1 or pads[dim].any()]
    if not spans:
        return x
    if len(spans) > 3:
        raise Unsupported(f"over {len(spans)} dimensions")
    others = [dim for dim in range(rank) if dim not in spans]
    order = [*others, *spans]
    flat = x.transpose(order).reshape([math.prod(x.shape[dim] for dim in others), 1, *(x.shape[dim] for dim in spans)])
    window: dict[str, Any] = {
        "strides": [steps[dim] for dim in spans],
        "pads": [int(pads[dim, side]) for side in (0, 1) for dim in spans],
        "dilations": [apart[dim] for dim in spans],
    }
    kernel = [sizes[dim] for dim in spans]
    if word == "maximum":
        found = code.emit(graph.MaxPoolOp(flat.value, kernel_shape=kernel, **window))
    else:
        taps = code.array(np.ones([1, 1, *kernel], numpy_dtype(x.element_type)), "ones")
        found = code.emit(graph.ConvOp(flat.value, taps.value, **window))
    result = _result(op).get_shape()
    return found.reshape([result[dim] for dim in order]).transpose([order.index(dim) for dim in range(rank)])


@converts("custom_call")
def _custom_call(code: Any, op: HloOp, *xs: Term) -> Term:
    target = op.get("target") or op.get("call_target_name")
    name = _plain(target) if isinstance(target, StringAttr) else cast(Any, target).string_value()
    if name == "Sharding":
        return xs[0]
    raise Unsupported(f"it calls {name}")


@converts("optimization_barrier")
def _optimization_barrier(code: Any, op: HloOp, *xs: Term) -> Sequence[Term]:
    return xs


# What a form says.


def _result(op: HloOp) -> Tensor:
    return tensor_of(op.results[0])


def _items(attribute: Attribute) -> list[Attribute]:
    return list(cast(ArrayAttr[Attribute], attribute))


def _plain(attribute: Attribute) -> Any:
    """A number or a word."""
    if isinstance(attribute, IntegerAttr):
        return cast("IntegerAttr[Any]", attribute).value.data
    return cast(StringAttr, attribute).data


def _numbers(attribute: Attribute) -> list[int]:
    """A list of integers, in whatever form."""
    if isinstance(attribute, DenseArrayBase):
        return [int(each) for each in cast("DenseArrayBase[Any]", attribute).get_values()]
    if isinstance(attribute, DenseIntOrFPElementsAttr):
        return [int(each) for each in graph_values(cast("graph.Dense", attribute))[0].ravel()]
    return [int(_plain(each)) for each in _items(attribute)]


def _ints(op: HloOp, *names: str, default: list[int] | None = None) -> list[int]:
    """The integers that are called by one of several names."""
    found = next((each for name in names if (each := op.get(name)) is not None), None)
    if found is None:
        if default is None:
            raise Unsupported(f"without {names[0]}")
        return default
    return _numbers(found)


def _int(op: HloOp, *names: str, default: int | None = None) -> int:
    found = next((each for name in names if (each := op.get(name)) is not None), None)
    if found is None:
        if default is None:
            raise Unsupported(f"without {names[0]}")
        return default
    return int(_plain(found))


def _pair(op: HloOp, name: str) -> tuple[list[int], list[int]]:
    """`[..] x [..]`."""
    if (found := op.get(name)) is None:
        return [], []
    left, right = _items(found)
    return _numbers(left), _numbers(right)


def _words(op: HloOp) -> list[str]:
    """The bare words of a form, or what they are called in generic form."""
    if (found := op.get("words")) is not None:
        return [str(_plain(each)) for each in _items(found)]
    found = [str(op.get(name) or "") for name in ("comparison_direction", "compare_type")]
    return [word.rstrip(">").rpartition(" ")[2] for word in found if word]


def _listed(text: str, name: str) -> list[int]:
    """The integers of an entry of an attribute that is kept as text: `name = [1, 2]`, or one."""
    found = re.search(rf"\b{name} = (?:\[([-\d, ]*)\]|(\d+))", text)
    return [] if found is None else [int(each) for each in re.findall(r"-?\d+", found[1] or found[2] or "")]
