# SPDX-License-Identifier: Apache-2.0
"""Misuses of the kernel language: each is refused at its token, marked by ^, with what was expected there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_text import SourceText

SIZES = {"N": 4, "M": 6}


@dataclass(frozen=True)
class Misuse:
    """A text with a mark before the token that is wrong, and what is said of it."""

    name: str
    text: str
    message: str


def body(*lines: str, head: str = "f32 x[N, M], f32 z[N]", result: str = "f32 y[N, M]") -> str:
    """A kernel of some statements."""
    return "\n".join([f"kernel f({head}) -> ({result}) {{", *lines, "}"])


MISUSES = [
    Misuse("unknown tensor", body("y[i, j] = ^w[i, j]"), 'unknown tensor "w"'),
    Misuse(
        "index out of bounds",
        body("y[i, j] = x[i ^+ 1, j]"),
        'index out of bounds: it is 1 to 4, and the dim of "x" has',
    ),
    Misuse(
        "store out of bounds",
        body("y[i ^+ 1, j] = x[i, j]"),
        'index out of bounds: it is 1 to 4, and the dim of "y" has',
    ),
    Misuse("constant index out of bounds", body("y[i, j] = x[i, ^6]+z[i]"), "index out of bounds: it is 6"),
    Misuse("product of indices", body("y[i, j] = x[i ^* j, j]"), "an index must be affine in the dims"),
    Misuse("remainder of a range", body("y[i, j] = x[i ^// 3, j]"), '"i" runs over 0 to 3, which 3 does not divide'),
    Misuse("quotient of a sum", body("y[i, j] = x[(i + 1) ^// 2, j]"), "an index must be affine in the dims"),
    Misuse("index that is computed", body("y[i, j] = x[^min(i, 3), j]"), "an index must be affine in the dims"),
    Misuse("index that is read", body("y[i, j] = x[^z[i], j]"), "an index must be affine in the dims"),
    Misuse("tensor in an index", body("y[i, j] = x[^z, j]"), '"z" is a parameter, and no index'),
    Misuse(
        "stride that leaves elements out",
        body("y[2 * i, j] = x[i, j]", result="f32 y[2 * N, M]").replace("(f32 y", "(^f32 y"),
        'not all of the result "y" is stored',
    ),
    Misuse(
        "stride out of bounds",
        body("y[2 * i ^+ 2, j] = x[i, j]", result="f32 y[2 * N, M]"),
        'index out of bounds: it is 2 to 8, and the dim of "y" has the size 8',
    ),
    Misuse(
        "index on the left that moves backwards",
        body("y[3 ^- i, j] = x[i, j]"),
        "an index on the left must move forwards",
    ),
    Misuse(
        "index on the left that does not move",
        body("y[i - ^i, j] = x[i, j]"),
        "one index of the statement may move an index on the left",
    ),
    Misuse("rank", body("y[i, j] = ^z[i, j]"), '"z" takes 1 index, not 2'),
    Misuse("rank on the left", body("^y[i] = z[i]"), '"y" takes 2 indices, not 1'),
    Misuse("no index at all", body("y[i, j] = ^z"), '"z" is a tensor of 4: say which element'),
    Misuse("types meet", body("y[i, j] = x[i, j] ^+ h[i, j]", head="f32 x[N, M], f16 h[N, M]"), "f32 meets f16"),
    Misuse(
        "type of the left", body("y[i, j] = ^x[i, j]", result="i32 y[N, M]"), "the right side is f32, but the left i32"
    ),
    Misuse(
        "type of a reduction",
        body("y[i] = ^sum(j, x[i, j])", result="f16 y[N]"),
        "the right side is f32, but the left f16",
    ),
    Misuse("fraction as an integer", body("y[i] = ^1.5", result="i32 y[N]"), "1.5 is no integer, but meets i32"),
    Misuse("number that does not fit", body("y[i] = ^300", result="i8 y[N]"), "300 does not fit into i8"),
    Misuse("logarithm to a base", body("y[i, j] = ^log(8, 2)"), "log does not take these numbers"),
    Misuse(
        "number past a type of floats",
        body("y[i] = h[i] + ^1e9", head="f16 h[N]", result="f16 y[N]"),
        "1000000000.0 does not fit into f16",
    ),
    Misuse("number past bf16", body("y[i] = ^1e39", result="bf16 y[N]"), "1e+39 does not fit into bf16"),
    Misuse("number past all floats", body("y[i] = ^1e999", result="f32 y[N]"), "1e999 does not fit into f64"),
    Misuse(
        "padding that does not fit",
        body("y[i] = h[i - 1 else ^300]", head="i8 h[N]", result="i8 y[N]"),
        "300 does not fit into i8",
    ),
    Misuse(
        "padding that is no integer",
        body("y[i] = h[i - 1 else ^inf]", head="i32 h[N]", result="i32 y[N]"),
        "inf is no integer, but meets i32",
    ),
    Misuse(
        "start of a scan that does not fit",
        body("y[i] = y[i - 1 else ^300] + h[i]", head="i8 h[N]", result="i8 y[N]"),
        "300 does not fit into i8",
    ),
    Misuse(
        "identity that is no integer",
        "reducer larger(a, b) from ^-inf = max(a, b)\n" + body("y = larger(i, h[i])", head="i32 h[N]", result="i32 y"),
        "-inf is no integer, but meets i32",
    ),
    Misuse("misspelt reduction", body("y[i] = ^summ(j, x[i, j])", result="f32 y[N]"), 'unknown function "summ"'),
    Misuse("sum of bools", body("y[i] = ^sum(j, x[i, j] > 0)", result="i32 y[N]"), "sum is not defined on bool"),
    Misuse("any of numbers", body("y[i] = ^any(j, x[i, j])", result="bool y[N]"), "any is not defined on f32"),
    Misuse(
        "exp of integers", body("y[i] = ^exp(h[i])", head="i32 h[N]", result="i32 y[N]"), "exp is not defined on i32"
    ),
    Misuse("index outside its reduction", body("y[i, j] = sum(k, x[i, k]) * x[i, ^k]"), 'unknown index "k"'),
    Misuse("index that is not on the left", body("y[i, j] = x[i, ^k]"), 'unknown index "k"'),
    Misuse("index bound twice", body("y[i, j] = sum(^j, x[i, j])"), '"j" is an index already'),
    Misuse("index on the left twice", body("y[i, ^i] = z[i]"), '"i" is on the left twice'),
    Misuse("ranges that disagree", body("y[i, j] = ^x[j, i]"), '"i" runs over 4 elements of "y" and 6 of "x"'),
    Misuse("range that is not known", body("y[i, j] = sum(^k, x[i, k + 1 else 0])"), 'the range of "k" is not known'),
    Misuse("use before store", body("y[i, j] = ^y[i, j] + 1"), '"y" is read before anything is stored to it'),
    Misuse(
        "use of a local before store",
        body("f32 t[N]", "y[i, j] = ^t[i]"),
        '"t" is read before anything is stored to it',
    ),
    Misuse(
        "use of a part",
        body("y[i in 0:2, j] = x[i, j]", "y[i in 2:4, j] = ^y[i, j]"),
        '"y" is read before all of it is stored',
    ),
    Misuse(
        "scan of what is stored already",
        body("y = x", "y[i, j] = ^y[i - 1, j else 0] + x[i, j]"),
        '"y" holds values already, and is read where others are stored',
    ),
    Misuse(
        "scan without a start",
        body("y[i, j] = ^y[i - 1, j] + x[i, j]"),
        "what a recurrence reads before its first row is not said",
    ),
    Misuse(
        "scan that starts with an element",
        body("y[i, j] = y[i - 1, j else ^z[i]] + x[i, j]"),
        "what a recurrence reads before its first row must be a number",
    ),
    Misuse(
        "scan that starts twice",
        body("y[i, j] = y[i - 1, j else 0] + ^y[i - 2, j else 1]"),
        "before the first row, this reads 1, and another read 0",
    ),
    Misuse(
        "scan from a row that is not stored",
        body("y[i in 1:N, j] = ^y[i - 1, j] + x[i, j]"),
        '"y" is read before anything is stored to it',
    ),
    Misuse(
        "scan in two directions",
        body("y[i, j] = ^y[i - 1, j else 0] + y[i, j - 1 else 0]"),
        '"y" is read before anything is stored to it',
    ),
    Misuse(
        "scan that reads past its row",
        body("y[0, j] = x[0, j]", "y[i in 1:N, j] = y[i - 1, j ^+ 1] + x[i, j]"),
        'index out of bounds: it is 1 to 6, and the dim of "y" has the size 6',
    ),
    Misuse(
        "scan that stores a part of its rows",
        body("y[i, ^j in 1:M] = y[i - 1, j else 0] + x[i, j]"),
        "a row of a recurrence is stored from its beginning",
    ),
    Misuse(
        "scan that reads another part",
        body("for n in 0:N {", "y[n, t] = y[^0, t - 1 else 0] + x[n, t]", "}"),
        'this reads another part of "y" than the statement stores',
    ),
    Misuse(
        "scan that reads behind the part that it stores",
        body("y[i, j in 4:M] = x[i, j]", "y[i, j in 0:4] = y[i - 1, j ^+ 1 else 0] + x[i, j]"),
        'this may read another part of "y" than is stored',
    ),
    Misuse(
        "use of what the next iteration stores",
        body("for n in 0:N - 1 {", "y[n, :] = x[n, :]", "t = ^y[n + 1, :]", "}"),
        '"y" is read before all of it is stored',
    ),
    Misuse(
        "use of more than an iteration has stored",
        body("for n in 0:N {", "y[n, 0] = z[n]", "t = ^y[n, 0:2]", "}"),
        '"y" is read before all of it is stored',
    ),
    Misuse(
        "use of what an iteration of another loop has stored",
        body("for n in 0:2 {", "y[n, :] = x[n, :]", "}", "for n in 0:N {", "t = ^y[n, :]", "}"),
        '"y" is read before all of it is stored',
    ),
    Misuse(
        "result without a store",
        body("t[i] = z[i]").replace("(f32 y", "(^f32 y"),
        'nothing is stored to the result "y"',
    ),
    Misuse(
        "result that is stored in part",
        body("y[i in 0:3, j] = x[i, j]").replace("(f32 y", "(^f32 y"),
        'not all of the result "y" is stored',
    ),
    Misuse(
        "result that a loop stores in part",
        body("for i in 0:3 {", "y[i, :] = x[i, :]", "}").replace("(f32 y", "(^f32 y"),
        'not all of the result "y" is stored',
    ),
    Misuse("assignment to a parameter", body("^z[i] = 1"), '"z" is a parameter, and cannot be assigned to'),
    Misuse("assignment to a size", body("^N = 1"), '"N" is a size or a constant, and cannot be assigned to'),
    Misuse("name bound twice", body("^f32 z[N] = 0"), '"z" is a parameter already'),
    Misuse("local that is a size", body("^f32 N[4] = 0"), '"N" is a size or a constant already'),
    Misuse(
        "loop variable bound twice",
        body("for i in 0:N {", "for ^i in 0:M {", "}", "}"),
        '"i" is the variable of a loop already',
    ),
    Misuse(
        "kernels of one name",
        "kernel f(f32 x) -> (f32 y) {\n y = x \n}\n^kernel f(f32 x) -> (f32 y) {\n y = x \n}",
        '"f" is defined already',
    ),
    Misuse("function of a taken name", "^function exp(x) = x\n" + body("y = x"), '"exp" is a name of the language'),
    Misuse("recursion", "function g(x) = ^g(x) + 1\n" + body("y = x"), '"g" calls itself'),
    Misuse("recursion by another", "function g(x) = h(x)\nfunction h(x) = ^g(x)\n" + body("y = x"), '"g" calls itself'),
    Misuse("recursion of a kernel", body("y = ^f(x, z)"), '"f" calls itself'),
    Misuse("recursion of a reducer", "reducer r(a, b) from 0 = ^r(a, b) + a\n" + body("y = x"), '"r" calls itself'),
    Misuse(
        "call of a kernel",
        body("y = ^g(z)") + "\nkernel g(f32 x[N]) -> (f32 y[N]) {\n y = x \n}",
        '"g" is a kernel, which a graph calls',
    ),
    Misuse("unknown function", body("y[i, j] = ^expp(x[i, j])"), 'unknown function "expp"'),
    Misuse("number of arguments", body("y[i, j] = ^exp(x[i, j], 1)"), "exp takes 1 argument, not 2"),
    Misuse("unknown type", body("y = x", head="^f31 x[N, M]"), 'unknown element type "f31"'),
    Misuse("unknown type of a cast", body("y[i, j] = cast(^f31, x[i, j])"), 'unknown type "f31"'),
    Misuse("unknown size", body("f32 t[^Q] = 0"), 'unknown size "Q"'),
    Misuse("shapes of tiles", body("y = x ^+ z"), "4x6 meets 4"),
    Misuse("shape of a tile and its target", body("y = ^z"), '"y" is 4x6, and the right side 4'),
    Misuse(
        "carried tile of another shape",
        body("f32 t[N] = 0", "for i in 0:M {", "t = ^x[0, :]", "}", "y = x"),
        '"t" is 4, and the right side 6',
    ),
    Misuse("dot of shapes", body("t = ^dot(x, x)"), "dot of 4x6 and 4x6"),
    Misuse("length of a slice", body("for i in 0:N {", "t = x[i, ^0:i]", "}"), "the length of this slice is not known"),
    Misuse("slice among indices", body("y[i, ^:] = x[i, :]"), "a slice stands in a statement of whole tiles"),
    Misuse(
        "grid that carries",
        body("f32 t = 0", "grid i in 0:N {", "^t += z[i]", "}"),
        '"t" is assigned in a grid, and read in it',
    ),
    Misuse(
        "grid that reads another iteration",
        body("y = x", "grid i in 1:N {", "y[i, :] = ^y[i - 1, :]", "}"),
        '"y" is assigned in a grid, and read in it',
    ),
    Misuse(
        "grid that adds to one element",
        body("y = x", "grid i in 0:N {", "^y[0, :] += x[i, :]", "}"),
        '"y" is assigned in a grid, and read in it',
    ),
    Misuse(
        "grid whose iterations meet",
        body("grid i in 0:N - 1 {", "^y[i:+2, :] = x[i:+2, :]", "}"),
        'two iterations of "i" may store to one element of "y"',
    ),
    Misuse("empty range", body("for ^i in 3:3 {", "}"), 'the range of "i" is empty: 3 to 3'),
    Misuse("step of nothing", body("for i in 0:N:^0 {", "}"), "a step must be at least 1, not 0"),
    Misuse("branch on a number", body("if ^N {", "y = x", "}"), "a condition must hold or not hold, and this is 4"),
    Misuse("branch on a float", body("y = x", "if ^z[0] {", "y = 0", "}"), "a condition must hold or not hold"),
    Misuse("branch on a tensor", body("y = x", "if z ^> 0 {", "y = 0", "}"), "a condition must hold or not hold"),
    Misuse("branch on nothing", body("if ^w > 0 {", "y = x", "}"), 'unknown name "w"'),
    Misuse(
        "branch that stores first",
        body("for i in 0:N {", "if z[i] > 0 {", "^y[i, :] = x[i, :]", "}", "}"),
        '"y" holds nothing before it is stored in a branch',
    ),
    Misuse(
        "branch that leaves a part out",
        body("for i in 0:N {", "if i > 0 {", "y[i, :] = x[i, :]", "}", "}").replace("(f32 y", "(^f32 y"),
        'not all of the result "y" is stored',
    ),
    Misuse(
        "branch that is computed everywhere",
        body("y = x", "for i in 0:N {", "if z[i] > 0 {", "y[i, :] = x[i ^- 1, :]", "}", "}"),
        "index out of bounds: it is -1 to 2",
    ),
    Misuse(
        "local of a branch",
        body("y = x", "if z[0] > 0 {", "t = z[0]", "}", "y[i, j] = ^t"),
        'unknown name "t"',
    ),
    Misuse("division by zero", body("y[i, j] = x[i, j] * (1 ^/ 0)"), "there is no such number"),
    Misuse(
        "identity that is no number",
        "reducer r(a, b) from ^a = a + b\n" + body("y[i, j] = r(k, x[i, k])"),
        "the identity of a reducer",
    ),
    Misuse(
        "parameter in a scope",
        body("y = x").replace("(f32 x", "(^spad f32 x"),
        'the parameter "x" is handed over off chip, and cannot be in a scope',
    ),
    Misuse(
        "result in a scope",
        body("y = x").replace("(f32 y", "(^spad f32 y"),
        'the result "y" is handed over off chip, and cannot be in a scope',
    ),
    Misuse("load with indices", body("^t[i] = load(z[i])", "y = x"), "load and store copy tiles, which have no"),
    Misuse("load of a value", body("t = ^load(z + 1)", "y = x"), "load takes a tensor, or a slice of one"),
    Misuse("load that is added", body("t = z", "t += ^load(z)", "y = x"), "load stands alone"),
    Misuse("load of another type", body("f16 t[N] = load(^z)", "y = x"), "a copy of f32 to f16"),
    Misuse("load of another shape", body("f32 t[M] = load(^z)", "y = x"), '"t" is 6, and the right side 4'),
    Misuse("load within an expression", body("t = exp(^load(z))", "y = x"), "load stands alone"),
    Misuse("store of nothing", body("^store(y)"), "a call for its effect must be store(tensor[...], value)"),
    Misuse("store to a parameter", body("store(^z, z)", "y = x"), '"z" is a parameter, and cannot be assigned to'),
    Misuse(
        "reducer that is not associative",
        "reducer mean(a, b) from 0 = (a + b) ^/ 2\n" + body("y = x"),
        'the reducer "mean" is not associative: mean(mean(1.0, 1.0), 2.0) is 1.5, and '
        "mean(1.0, mean(1.0, 2.0)) is 1.25",
    ),
    Misuse(
        "reducer that is not associative by a function",
        "function half(x) = select(x > 0, 0.5 * x, x)\nreducer r(a, b) from 0 = half(a) ^+ half(b)\n" + body("y = x"),
        'the reducer "r" is not associative',
    ),
    Misuse(
        "reducer that is not commutative",
        "reducer first(a, b) from 0 = ^a\n" + body("y = x"),
        'the reducer "first" is not commutative: first(1.0, 2.0) is 1.0, and first(2.0, 1.0) is 2.0',
    ),
    Misuse(
        "reducer of integers that is not associative",
        "reducer r(a, b) from 0 = shl(a, 1) ^+ b\n" + body("y = x"),
        'the reducer "r" is not associative: r(r(1, 1), 1) is 7, and r(1, r(1, 1)) is 5',
    ),
    Misuse(
        "reducer of bools that is not associative",
        "reducer nor(a, b) from false = ^not (a or b)\n" + body("y = x"),
        'the reducer "nor" is not associative',
    ),
    Misuse(
        "reducer of another identity",
        "reducer larger(a, b) from ^0 = max(a, b)\n" + body("y = x"),
        'the reducer "larger" has another identity: larger(0, -1.0) is 0',
    ),
    Misuse(
        "reducer that takes no elements",
        "reducer r(a, b) from 0 = cast(i4, a) ^+ b\n" + body("y = x"),
        "i4 meets f32",
    ),
    Misuse(
        "padding that is no number",
        body("y[i, j] = x[i + 1, j else ^z[i]]"),
        "what is read out of bounds must be a number",
    ),
]


def lower(text: str) -> None:
    """Lower the only kernel of a text."""
    file = KernelFile(SourceText("k.pk", text))
    file.function(file.kernel(), {name: size for name, size in SIZES.items() if name in text})


@pytest.mark.parametrize("misuse", MISUSES, ids=[misuse.name for misuse in MISUSES])
def test_a_misuse_is_refused_at_its_token(misuse: Misuse) -> None:
    before, mark, after = misuse.text.partition("^")
    assert mark
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    with pytest.raises(UserError) as caught:
        lower(before + after)
    assert caught.value.message.startswith(misuse.message)
    assert caught.value.loc == f"k.pk:{line}:{column}"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"N": 4}, 'the size is not known: "M" of the kernel "f"'),
        ({}, 'the sizes are not known: "N", "M" of the kernel "f"'),
        ({"N": 4, "M": 6, "K": 1}, 'the kernel "f" has no size "K"'),
        ({"N": 0, "M": 6}, 'the size "N" must be at least 1, not 0'),
    ],
)
def test_sizes_must_be_those_of_the_kernel(sizes: dict[str, int], message: str) -> None:
    file = KernelFile(SourceText("k.pk", body("y = x")))
    with pytest.raises(UserError) as caught:
        file.function(file.kernel(), sizes)
    assert caught.value.message == message
