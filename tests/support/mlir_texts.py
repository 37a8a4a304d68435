# SPDX-License-Identifier: Apache-2.0
"""Random programs of linalg and of TOSA, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.upstream.linalg_named import NAMED, form_of

Array = NDArray[Any]
Shape = Sequence[int]

DTYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "i32": np.int32, "i64": np.int64, "i1": np.bool_}
NEWER = frozenset(f"linalg.conv_2d_{name}" for name in ("nchw_fchw_q", "nhwgc_gfhwc", "nhwgc_gfhwc_q"))
"""Named operations that MLIR 19 does not have."""


def type_of(shape: Shape, element: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


@dataclass
class Text:
    """A function under construction."""

    rng: np.random.Generator
    lines: list[str] = field(default_factory=list[str])
    inputs: list[tuple[str, Shape, str]] = field(default_factory=list[tuple[str, Shape, str]])
    results: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def input(self, shape: Shape, element: str) -> str:
        name = f"%x{len(self.inputs)}"
        self.inputs.append((name, tuple(shape), element))
        return name

    def op(self, text: str, result: str | None = None) -> str:
        """A line of the body; `result` is its type where it is returned."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        if result is not None:
            self.results.append((name, result))
        return name

    def size(self, most: int = 4) -> int:
        return int(self.rng.integers(1, most + 1))

    def any(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def text(self) -> str:
        arguments = ", ".join(f"{name}: {type_of(shape, element)}" for name, shape, element in self.inputs)
        names, types = (", ".join(each[place] for each in self.results) for place in (0, 1))
        return "\n".join(
            [f"func.func @main({arguments}) -> ({types}) {{", *self.lines, f"  return {names} : {types}", "}", ""]
        )

    def arrays(self) -> list[Array]:
        """Small whole numbers, whose sums are exact in any order."""
        drawn = [(self.rng.integers(-4, 5, shape), DTYPES[element]) for _, shape, element in self.inputs]
        return [(numbers > 0) if dtype is np.bool_ else numbers.astype(dtype) for numbers, dtype in drawn]


# Named operations of linalg


def _attributes(name: str, strides: Shape, dilations: Shape) -> str:
    if not ("conv_" in name or "pooling_" in name) or name.endswith(("_1d", "_2d", "_3d")):
        return ""
    rank = len(strides)
    return (
        f" {{dilations = dense<[{', '.join(map(str, dilations))}]> : tensor<{rank}xi64>,"
        f" strides = dense<[{', '.join(map(str, strides))}]> : tensor<{rank}xi64>}}"
    )


def named(made: Text, name: str) -> None:
    """An operation of the tables on inputs of sizes that fit, and a value that it begins with."""
    form = form_of(name)
    short = name.partition(".")[2]
    if form.operands is None:
        _elementwise(made, short)
        return
    narrow, wide = made.any(("f32", "f32"), ("i8", "i32"), ("i32", "i32"), ("f32", "f64"))
    if short.endswith("_q") or short.startswith("quantized"):
        narrow, wide = "i8", "i32"
    if short.endswith("unsigned"):
        narrow = wide = "i32"
    if short.startswith("pooling"):
        narrow = wide
    operands = ["" if word == "." else word for word in form.operands]
    space = [letter for letter in "ZYX" if letter in operands[-1]]
    sizes = {letter: made.size(3 if letter in "zyx" else 4) for word in operands for letter in word}
    steps = 1 if name.endswith(("_1d", "_2d", "_3d")) else 2
    strides, dilations = ([made.size(steps) for _ in space] for _ in range(2))

    def extent(letter: str, is_input: bool) -> int:
        if not (is_input and letter in space):
            return sizes[letter]
        at = space.index(letter)
        return (sizes[letter] - 1) * strides[at] + (sizes[letter.lower()] - 1) * dilations[at] + 1

    shapes = [[extent(letter, index == 0) for letter in word] for index, word in enumerate(operands)]
    scalars = [index for index, word in enumerate(form.operands) if word == "." and index < len(operands) - 1]
    values, types = list[str](), list[str]()
    for index, shape in enumerate(shapes):
        element = wide if index == len(shapes) - 1 or index in scalars else narrow
        if index in scalars:
            values.append(made.op(f"arith.constant {int(made.rng.integers(-3, 4))} : {element}"))
            types.append(element)
        else:
            values.append(made.input(shape, element))
            types.append(type_of(shape, element))
    made.op(
        f"{name}{_attributes(name, strides, dilations)} ins({', '.join(values[:-1])} : {', '.join(types[:-1])})"
        f" outs({values[-1]} : {types[-1]}) -> {types[-1]}",
        types[-1],
    )


_OF_INTEGERS = frozenset(("add", "sub", "mul", "max", "min"))
_POSITIVE = frozenset(("log", "sqrt", "rsqrt", "reciprocal", "div", "div_unsigned", "powf"))


def _elementwise(made: Text, short: str) -> None:
    shape = [made.size() for _ in range(made.size(3))]
    element = "i32" if short == "div_unsigned" or (short in _OF_INTEGERS and made.any(True, False)) else "f32"
    whole = type_of(shape, element)
    out = made.op(f"tensor.empty() : {whole}")
    if short == "fill":
        number = made.op(f"arith.constant {'3' if element == 'i32' else '3.5'} : {element}")
        made.op(f"linalg.fill ins({number} : {element}) outs({out} : {whole}) -> {whole}", whole)
        return
    kind = ""
    count = 1
    if short == "elemwise_unary":
        kind = f" {{fun = #linalg.unary_fn<{made.any('exp', 'abs', 'floor', 'tanh', 'square', 'negf')}>}}"
    elif short == "elemwise_binary":
        kind, count = f" {{fun = #linalg.binary_fn<{made.any('add', 'sub', 'mul', 'max_signed')}>}}", 2
    elif short in ("add", "sub", "mul", "div", "div_unsigned", "max", "min", "powf"):
        count = 2
    operands = [made.input(shape, element) for _ in range(count)]
    types = [whole] * count
    if short in _POSITIVE:
        operands = [_positive(made, each, whole, element) for each in operands]
    if short == "select":
        operands = [made.input(shape, "i1"), *operands, made.input(shape, element)]
        types = [type_of(shape, "i1"), whole, whole]
    made.op(
        f"linalg.{short}{kind} ins({', '.join(operands)} : {', '.join(types)}) outs({out} : {whole}) -> {whole}", whole
    )


def _positive(made: Text, value: str, whole: str, element: str) -> str:
    """x * x + 1."""
    one = made.op(f"arith.constant {'1' if element == 'i32' else '1.0'} : {element}")
    ones = made.op(f"linalg.fill ins({one} : {element}) outs({value} : {whole}) -> {whole}")
    empty = made.op(f"tensor.empty() : {whole}")
    square = made.op(f"linalg.mul ins({value}, {value} : {whole}, {whole}) outs({empty} : {whole}) -> {whole}")
    return made.op(f"linalg.add ins({square}, {ones} : {whole}, {whole}) outs({empty} : {whole}) -> {whole}")


def others(made: Text) -> None:
    """Transposes, broadcasts, maps, reductions, joins and pads."""
    shape = [made.size() for _ in range(3)]
    whole = type_of(shape, "f32")
    x = made.input(shape, "f32")
    order: list[int] = list(made.any((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)))
    turned = type_of([shape[dim] for dim in order], "f32")
    out = made.op(f"tensor.empty() : {turned}")
    made.op(f"linalg.transpose ins({x} : {whole}) outs({out} : {turned}) permutation = {order}", turned)
    axis = made.size(3) - 1
    small = type_of([size for dim, size in enumerate(shape) if dim != axis], "f32")
    y = made.input([size for dim, size in enumerate(shape) if dim != axis], "f32")
    empty = made.op(f"tensor.empty() : {whole}")
    made.op(f"linalg.broadcast ins({y} : {small}) outs({empty} : {whole}) dimensions = [{axis}]", whole)
    kind = made.any("addf", "maximumf", "minimumf")
    made.op(f"linalg.reduce {{ arith.{kind} }} ins({x} : {whole}) outs({y} : {small}) dimensions = [{axis}]", small)
    made.op(
        f"linalg.map {{ arith.{made.any('subf', 'mulf')} }} ins({x}, {x} : {whole}, {whole}) outs({empty} : {whole})",
        whole,
    )
    low, high = ([made.size(3) - 1 for _ in shape] for _ in range(2))
    padded = type_of([a + b + c for a, b, c in zip(low, shape, high, strict=True)], "f32")
    number = made.op("arith.constant 2.0 : f32")
    indices = ", ".join(f"%i{made.count}_{dim}: index" for dim in range(3))
    made.op(
        f"tensor.pad {x} low{low} high{high} {{\n  ^bb0({indices}):\n    tensor.yield {number} : f32\n  }}"
        f" : {whole} to {padded}",
        padded,
    )
    flat = type_of([shape[0], shape[1] * shape[2]], "f32")
    folded = made.op(f"tensor.collapse_shape {x} [[0], [1, 2]] : {whole} into {flat}")
    made.op(f"tensor.expand_shape {folded} [[0], [1, 2]] output_shape {list(shape)} : {flat} into {whole}", whole)
    starts = [made.size(size) - 1 for size in shape]
    kept = [size - start for size, start in zip(shape, starts, strict=True)]
    part = type_of(kept, "f32")
    made.op(f"tensor.extract_slice {x}{starts} {kept} [1, 1, 1] : {whole} to {part}", part)


# TOSA


def _constant(made: Text, numbers: Any, element: str) -> str:
    array = np.asarray(numbers)
    whole = type_of(array.shape, element)
    return made.op(f'"tosa.const"() <{{value = dense<{array.tolist()}> : {whole}}}> : () -> {whole}')


def _weights(made: Text, shape: Shape, element: str) -> str:
    return _constant(made, made.rng.integers(-3, 4, shape).astype(DTYPES[element]), element)


def _called(
    made: Text, name: str, operands: Sequence[tuple[str, Shape, str]], result: Shape, element: str, **said: str
) -> str:
    attributes = ", ".join(f"{key} = {value}" for key, value in said.items())
    names = ", ".join(each[0] for each in operands)
    types = ", ".join(type_of(each[1], each[2]) for each in operands)
    whole = type_of(result, element)
    return made.op(f"tosa.{name} {names}{' {' + attributes + '}' if attributes else ''} : ({types}) -> {whole}", whole)


def _ints(numbers: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, numbers))}>"


def _windows(made: Text) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """Sizes, kernel, strides, dilations, padding and places that fit each other."""
    columns = list[tuple[int, ...]]()
    for _ in range(2):
        kernel, stride, dilation, places = made.size(3), made.size(2), made.size(2), made.size(4)
        extent = (places - 1) * stride + (kernel - 1) * dilation + 1
        low, high = (made.size(kernel) - 1 for _ in range(2))
        while extent - low - high < 1:
            low, high = 0, 0
        columns.append((extent - low - high, kernel, stride, dilation, low, high, places))
    sizes, kernel, strides, dilations, lows, highs, places = ([each[at] for each in columns] for at in range(7))
    return sizes, kernel, strides, dilations, [lows[0], highs[0], lows[1], highs[1]], places


def _zero_points(made: Text, kind: str, *names: str) -> dict[str, str]:
    said = ", ".join(f"{name} = {int(made.rng.integers(-5, 6))}" for name in names)
    return {"quantization_info": f"#tosa.{kind}_quant<{said}>"}


def tosa_convolution(made: Text) -> None:
    sizes, kernel, strides, dilations, pads, places = _windows(made)
    batch, channels, filters = made.size(2), made.size(), made.size()
    narrow, wide = made.any(("f32", "f32"), ("i8", "i32"))
    deep = made.any(True, False)
    shape = [*kernel, channels, filters] if deep else [filters, *kernel, channels]
    outputs = channels * filters if deep else filters
    said = {"dilation": _ints(dilations), "pad": _ints(pads), "stride": _ints(strides)}
    if narrow == "i8":
        said |= _zero_points(made, "conv", "input_zp", "weight_zp")
    operands = [
        (made.input([batch, *sizes, channels], narrow), [batch, *sizes, channels], narrow),
        (_weights(made, shape, narrow), shape, narrow),
        (_weights(made, [outputs], wide), [outputs], wide),
    ]
    _called(made, "depthwise_conv2d" if deep else "conv2d", operands, [batch, *places, outputs], wide, **said)


def tosa_transposed_convolution(made: Text) -> None:
    batch, channels, filters = made.size(2), made.size(), made.size()
    kernel, strides, sizes = ([made.size(3) for _ in range(2)] for _ in range(3))
    pads = [made.size(3) - 1 for _ in range(4)]
    result = [
        (size - 1) * step + extent + pads[2 * dim] + pads[2 * dim + 1]
        for dim, (size, step, extent) in enumerate(zip(sizes, strides, kernel, strict=True))
    ]
    shape = [filters, *kernel, channels]
    operands = [
        (made.input([batch, *sizes, channels], "f32"), [batch, *sizes, channels], "f32"),
        (_weights(made, shape, "f32"), shape, "f32"),
        (_weights(made, [filters], "f32"), [filters], "f32"),
    ]
    whole = [batch, *result, filters]
    _called(
        made,
        "transpose_conv2d",
        operands,
        whole,
        "f32",
        out_pad=_ints(pads),
        out_shape=_ints(whole),
        stride=_ints(strides),
    )


def tosa_product(made: Text) -> None:
    rows, inner, columns, batch = (made.size() for _ in range(4))
    narrow, wide = made.any(("f32", "f32"), ("i8", "i32"))
    if made.any(True, False):
        said = _zero_points(made, "matmul", "a_zp", "b_zp") if narrow == "i8" else {}
        shapes = [batch, rows, inner], [batch, inner, columns]
        operands = [(made.input(shape, narrow), shape, narrow) for shape in shapes]
        _called(made, "matmul", operands, [batch, rows, columns], wide, **said)
        return
    said = _zero_points(made, "conv", "input_zp", "weight_zp") if narrow == "i8" else {}
    operands = [
        (made.input([rows, inner], narrow), [rows, inner], narrow),
        (_weights(made, [columns, inner], narrow), [columns, inner], narrow),
        (_weights(made, [columns], wide), [columns], wide),
    ]
    _called(made, "fully_connected", operands, [rows, columns], wide, **said)


def tosa_pool(made: Text) -> None:
    sizes, kernel, strides, dilations, pads, places = _windows(made)
    while dilations != [1, 1] or any(pad >= extent for pad, extent in zip(pads, np.repeat(kernel, 2), strict=True)):
        sizes, kernel, strides, dilations, pads, places = _windows(made)
    shape = [made.size(2), *sizes, made.size()]
    element, name = made.any("f32", "i8"), made.any("max_pool2d", "avg_pool2d")
    said = {"kernel": _ints(kernel), "pad": _ints(pads), "stride": _ints(strides)}
    if name == "avg_pool2d":
        said["acc_type"] = "f32" if element == "f32" else "i32"
        if element == "i8":
            said |= _zero_points(made, "unary", "input_zp", "output_zp")
    _called(made, name, [(made.input(shape, element), shape, element)], [shape[0], *places, shape[3]], element, **said)


_FLOAT_UNARY = "abs ceil exp floor negate tanh sigmoid erf sin cos".split()
_POSITIVE_UNARY = "log reciprocal rsqrt".split()
_BINARY = "add sub maximum minimum".split()


def tosa_elementwise(made: Text) -> None:
    shape = [made.size() for _ in range(3)]
    thin = [size if made.any(True, False) else 1 for size in shape]
    element = made.any("f32", "i32")
    x, y = (made.input(shape, element), shape, element), (made.input(thin, element), thin, element)
    _called(made, made.any(*_BINARY), [x, y], shape, element)
    shift = "0" if element == "f32" else str(made.size(3) - 1)
    _called(made, "mul", [x, y], shape, element, shift=f"{shift} : i8")
    _called(made, made.any("greater", "greater_equal", "equal"), [x, y], shape, "i1")
    f = (made.input(shape, "f32"), shape, "f32")
    _called(made, made.any(*_FLOAT_UNARY), [f], shape, "f32")
    squared = _called(made, "mul", [f, f], shape, "f32", shift="0 : i8")
    one = _constant(made, np.ones([1] * 3, np.float32), "f32")
    positive = _called(made, "add", [(squared, shape, "f32"), (one, [1] * 3, "f32")], shape, "f32")
    _called(made, made.any(*_POSITIVE_UNARY), [(positive, shape, "f32")], shape, "f32")
    half = _constant(made, np.full([1] * 3, 0.5, np.float32), "f32")
    halves = _called(made, "mul", [f, (half, [1] * 3, "f32")], shape, "f32", shift="0 : i8")
    _called(made, "cast", [(halves, shape, "f32")], shape, made.any("i8", "i32"))
    ends = {"min_int": "-2 : i64", "max_int": "3 : i64", "min_fp": "-2.5 : f32", "max_fp": "2.0 : f32"}
    _called(made, "clamp", [x], shape, element, **ends)
    chosen = (made.input(shape, "i1"), shape, "i1")
    _called(made, "select", [chosen, f, f], shape, "f32")
    _called(made, made.any("logical_and", "logical_or", "logical_xor"), [chosen, chosen], shape, "i1")
    i = (made.input(shape, "i32"), shape, "i32")
    _called(made, made.any("bitwise_and", "bitwise_or", "bitwise_xor"), [i, i], shape, "i32")
    _called(
        made,
        "negate",
        [(made.input(shape, "i8"), shape, "i8")],
        shape,
        "i8",
        **_zero_points(made, "unary", "input_zp", "output_zp"),
    )
    by = _constant(made, made.rng.integers(0, 4, shape), "i32")
    _called(made, "arithmetic_right_shift", [i, (by, shape, "i32")], shape, "i32", round=made.any("true", "false"))


def tosa_places(made: Text) -> None:
    shape = [made.size() for _ in range(3)]
    element = made.any("f32", "i8", "i32")
    x = (made.input(shape, element), shape, element)
    axis = made.size(3) - 1
    order: Shape = made.any((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    perms = _constant(made, order, "i32")
    _called(made, "transpose", [x, (perms, [3], "i32")], [shape[dim] for dim in order], element)
    joined = [size * (1 + (dim == axis)) for dim, size in enumerate(shape)]
    _called(made, "concat", [x, x], joined, element, axis=f"{axis} : i32")
    widths = made.rng.integers(0, 3, (3, 2))
    amounts = _constant(made, widths, "i32")
    _called(
        made,
        "pad",
        [x, (amounts, [3, 2], "i32")],
        [size + int(sum(pair)) for size, pair in zip(shape, widths, strict=True)],
        element,
    )
    starts = [made.size(size) - 1 for size in shape]
    kept = [size - start for size, start in zip(shape, starts, strict=True)]
    _called(made, "slice", [x], kept, element, start=_ints(starts), size=_ints(kept))
    times = [made.size(2) for _ in shape]
    _called(made, "tile", [x], [a * b for a, b in zip(shape, times, strict=True)], element, multiples=_ints(times))
    _called(
        made, "reshape", [x], [shape[0], shape[1] * shape[2]], element, new_shape=_ints([shape[0], shape[1] * shape[2]])
    )
    _called(made, "reverse", [x], shape, element, axis=f"{axis} : i32")
    small = [1 if dim == axis else size for dim, size in enumerate(shape)]
    kind = (
        made.any("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
        if element != "i8"
        else made.any("reduce_max", "reduce_min")
    )
    _called(made, kind, [x], small, element, axis=f"{axis} : i32")
    truth = (made.input(shape, "i1"), shape, "i1")
    _called(made, made.any("reduce_any", "reduce_all"), [truth], small, "i1", axis=f"{axis} : i32")
    _called(made, "argmax", [x], [size for dim, size in enumerate(shape) if dim != axis], "i32", axis=f"{axis} : i32")
    count = made.size()
    rows = _constant(made, made.rng.integers(0, shape[1], (shape[0], count)), "i32")
    _called(made, "gather", [x, (rows, [shape[0], count], "i32")], [shape[0], count, shape[2]], element)
    i = (made.input(shape, "i8"), shape, "i8")
    entries = _constant(made, made.rng.integers(-128, 128, 256), "i8")
    _called(made, "table", [i, (entries, [256], "i8")], shape, "i8")


def tosa_rescale(made: Text) -> None:
    shape = [made.size() for _ in range(3)]
    source, target = made.any(("i32", "i8"), ("i8", "i32"), ("i8", "i8"), ("i32", "i32"))
    apart = made.any(True, False)
    count = shape[2] if apart else 1
    numbers = ", ".join(str(int(each)) for each in made.rng.integers(1 << 30, (1 << 31) - 1, count))
    shifts = ", ".join(str(int(each)) for each in made.rng.integers(29, 36, count))
    zero = int(made.rng.integers(-5, 6))
    said = {
        "double_round": made.any("true", "false"),
        "input_zp": f"{zero if source == 'i8' else 0} : i32",
        "multiplier": f"array<i32: {numbers}>",
        "output_zp": f"{zero if target == 'i8' else 0} : i32",
        "per_channel": "true" if apart else "false",
        "scale32": "true",
        "shift": f"array<i8: {shifts}>",
    }
    _called(made, "rescale", [(made.input(shape, source), shape, source)], shape, target, **said)


_TOSA = (
    tosa_convolution, tosa_convolution, tosa_transposed_convolution, tosa_product, tosa_pool, tosa_elementwise,
    tosa_places, tosa_rescale,
)  # fmt: skip


def tosa_program(seed: int, count: int = 6) -> Text:
    """Several operations, each result of which is returned."""
    made = Text(np.random.default_rng(seed))
    for index in made.rng.integers(0, len(_TOSA), count):
        _TOSA[int(index)](made)
    return made


def linalg_program(seed: int, count: int = 6) -> Text:
    """Several operations, each result of which is returned."""
    rng = np.random.default_rng(seed)
    names = sorted(set(NAMED) - NEWER)
    made = Text(rng)
    for name in rng.choice(names, count):
        named(made, str(name))
    others(made)
    return made
