# SPDX-License-Identifier: Apache-2.0
"""
The polynomials of `passes/polynomials.py`: their coefficients, and their errors over all numbers.

    python -m benchmarks.polynomials fit
    python -m benchmarks.polynomials errors [--functions exp,log] [--fma | --contract] [--step 1]
    python -m benchmarks.polynomials speed [--functions gelu,exp] [--fma] [--side 4096]

`fit` prints the coefficients: minimax polynomials under the weight with which their error enters the function, by
Lawson's iteration (reweighted least squares on Chebyshev points), in f32: the lowest coefficient is rounded and the
others are fitted anew, and so on. `errors` compiles each function to C as the compiler does, runs it on all f32, or on
every `step`th, and prints the largest error in units of the last place (ulp) against the C library's function of f64,
where it is, and how many results are on the wrong side of NaN, infinity or the sign. `--fma` has the polynomials made
with fused multiply-adds, `--contract` has the pass `contract` make those after them, as the compiler does for hosts
that have them. A function over all f32 takes half a minute or so. `speed` runs operators on a square matrix beside
onnxruntime, on one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, paired, say, table
from benchmarks.networks import check_agreement, onnxruntime_on_one_thread
from benchmarks.planning_runs import text_table
from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes import polynomials
from penstock.passes.toolchain import build_library, load
from penstock.runtime.compiler import compile_module
from penstock.runtime.native import NativeModule, load_native

Array = NDArray[np.float64]
Real = Callable[[float], float]
POINTS = 4000
ITERATIONS = 200


@dataclass(frozen=True)
class Fit:
    """What a polynomial stands for."""

    function: Real
    weight: Real
    low: float
    high: float
    degree: int


def _series(coefficients: Sequence[float], near: float, otherwise: Real) -> Real:
    """A function by its Taylor series, where its closed form would cancel."""
    return lambda x: sum(c * x**n for n, c in enumerate(coefficients)) if abs(x) < near else otherwise(x)


def _fits() -> dict[str, Fit]:
    half_ln2, ln2, scale = 1.0005 * math.log(2) / 2, math.log(2), 2 / math.sqrt(math.pi)
    exp = _series([1 / math.factorial(n + 2) for n in range(9)], 0.01, lambda r: (math.expm1(r) - r) / r**2)
    exp2 = _series([ln2 ** (n + 1) / math.factorial(n + 1) for n in range(9)], 0.01, lambda r: math.expm1(r * ln2) / r)
    log = _series([(-1) ** n / (n + 3) for n in range(15)], 0.02, lambda f: (math.log1p(f) - f + f * f / 2) / f**3)
    tanh_of_root = _series([-1 / 3, 2 / 15, -17 / 315, 62 / 2835], 1e-4, lambda s: (math.tanh(s**0.5) / s**0.5 - 1) / s)
    erf_of_root = _series([scale - 1, -scale / 3, scale / 10], 1e-6, lambda s: math.erf(s**0.5) / s**0.5 - 1)

    def root(u: float) -> float:
        return math.erfc(u + polynomials.ERFC_CENTER) ** 0.25

    small, one, center = polynomials.ERF_SMALL, polynomials.ERF_ONE, polynomials.ERFC_CENTER
    return {
        "EXP": Fit(exp, lambda r: r * r / math.exp(r), -half_ln2, half_ln2, 4),
        "EXP2": Fit(exp2, lambda r: abs(r) / 2**r, -0.5, 0.5, 5),
        "LOG": Fit(log, lambda f: f**3 / math.log1p(f), math.sqrt(0.5) - 1, math.sqrt(2) - 1, 7),
        "TANH": Fit(tanh_of_root, lambda s: s / (1 + s * tanh_of_root(s)), 0, polynomials.TANH_SMALL**2, 4),
        "ERF": Fit(erf_of_root, lambda s: 1 / (1 + erf_of_root(s)), 0, small**2, 6),
        "ERFC_ROOT": Fit(root, lambda u: 4 * root(u) ** 3, small - center, one - center, 8),
    }


def coefficients(fit: Fit) -> tuple[list[float], float]:
    """The coefficients in f32, lowest power first, and the largest weighted error."""
    angles = np.pi * (np.arange(POINTS) + 0.5) / POINTS
    x = (fit.low + fit.high) / 2 + (fit.high - fit.low) / 2 * np.cos(angles)
    wanted = np.array([fit.function(each) for each in x])
    weight = np.array([fit.weight(each) for each in x])
    powers = np.vander(x, fit.degree + 1, increasing=True)
    found: list[float] = []
    for power in range(fit.degree + 1):
        rounded = float(np.float32(_minimax(powers[:, power:], wanted, weight)[0]))
        found.append(rounded)
        wanted = wanted - powers[:, power] * rounded
    return found, float(np.abs(wanted * weight).max())


def _minimax(powers: Array, wanted: Array, weight: Array) -> Array:
    """The coefficients with the least largest weighted error."""
    importance = np.full(len(wanted), 1 / len(wanted))
    least, best = math.inf, np.zeros(powers.shape[1])
    for _ in range(ITERATIONS):
        scale = np.sqrt(importance) * weight
        found = np.linalg.lstsq(powers * scale[:, None], wanted * scale, rcond=None)[0].astype(np.float64)
        errors = np.abs((powers @ found - wanted) * weight)
        if errors.max() < least:
            least, best = float(errors.max()), found
        importance = importance * (errors / errors.max() + 1e-3)
        importance /= importance.sum()
    return best


def fit_all() -> None:
    """Print every polynomial as it stands in the source."""
    for name, fit in _fits().items():
        found, error = coefficients(fit)
        numbers = ", ".join(str(np.float32(each)) for each in found)
        print(f"{name} = ({numbers})  # error 2^{math.log2(error):.2f}", flush=True)


CHUNK = 1 << 22
"""Numbers at once."""
POLYNOMIALS = "math-polynomial-approximation"


@dataclass(frozen=True)
class Measured:
    """A function: an op on one f32, the exact value in C, and the number whose last place is the unit."""

    op: str
    exact: str
    unit: str = "exact"
    exponent: float = 0
    """Of powers: `%exponent`."""


def _function(name: str) -> Measured:
    return Measured(f"math.{name} %x : f32", f"{name}(x)")


def _power(exponent: float, of_positive: str) -> Measured:
    exact = f"x == 0 ? 0 : x == -INFINITY ? INFINITY : {of_positive}"
    return Measured("math.powf %x, %exponent : f32", exact, exponent=exponent)


MEASURED: dict[str, Measured] = {
    **{name: _function(name) for name in ("exp", "exp2", "expm1", "log", "log1p", "erf", "tanh")},
    "x^(1/4)": _power(0.25, "sqrt(sqrt(x))"),
    "x^(3/4)": _power(0.75, "sqrt(x) * sqrt(sqrt(x))"),
    # Below -88.7 it is 0, where the exact value is a denormal number.
    "sigmoid": Measured("graph.sigmoid %x", "x < -88 ? y : 1 / (1 + exp(-x))"),
    "softplus": Measured("graph.softplus %x", "x > 0 ? x + log1p(exp(-x)) : log1p(exp(x))"),
    "elu": Measured("graph.elu %x", "x > 0 ? x : expm1(x)"),
    # Where x is negative, 1 + erf(x) cancels in every formula with erf: the error is a small part of x, not of y.
    "gelu": Measured("graph.gelu %x", "0.5 * x * erfc(-x * M_SQRT1_2)", "x"),
    "gelu (tanh)": Measured(
        'graph.gelu %x approximate "tanh"',
        "x / (1 + exp(-2 * sqrt(M_2_PI) * (x + 0.044715 * x * x * x)))",
        "x",
    ),
}

_COMPARE = """\
#define _GNU_SOURCE
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
// The C library has these on vectors too, within 4 ulp of f64, which is nothing in an ulp of f32.
#define ON_VECTORS __attribute__((simd("notinbranch")))
#else
#define ON_VECTORS
#endif
ON_VECTORS double exp(double);
ON_VECTORS double exp2(double);
ON_VECTORS double expm1(double);
ON_VECTORS double log(double);
ON_VECTORS double log1p(double);
ON_VECTORS double tanh(double);
ON_VECTORS double erf(double);
ON_VECTORS double erfc(double);
#include <math.h>
#include <stdint.h>
#include <string.h>
enum {{ BLOCK = 1024 }};
union number {{ double value; uint64_t bits; }};
double largest_error(const float *in, const float *out, int64_t count, float *at, int64_t *wrong) {{
  // The bits of numbers that are not negative have the order of the numbers.
  union number largest = {{0}};
  for (int64_t first = 0; first < count; first += BLOCK) {{
    union number wanted[BLOCK], place[BLOCK], error[BLOCK];
    for (int64_t i = 0; i < BLOCK; ++i) {{
      const double x = in[first + i], y = out[first + i], exact = {exact};
      wanted[i].value = exact;
      place[i].value = {unit};
    }}
    for (int64_t i = 0; i < BLOCK; ++i) place[i].bits &= 0x7ff0000000000000u;
    for (int64_t i = 0; i < BLOCK; ++i) {{
      // Infinity is the number after the largest.
      const double y = out[first + i], exact = wanted[i].value, power = place[i].value;
      const double near = y < -0x1p128 ? -0x1p128 : y > 0x1p128 ? 0x1p128 : y;
      const double aim = exact < -0x1p128 ? -0x1p128 : exact > 0x1p128 ? 0x1p128 : exact;
      const double unit = power < 0x1p-126 ? 0x1p-149 : power > 0x1p127 ? 0x1p104 : power * 0x1p-23;
      const double apart = fabs(near - aim) / unit;
      error[i].value = exact != exact || y != y ? 0 : apart;
    }}
    uint64_t most = 0;
    for (int64_t i = 0; i < BLOCK; ++i) most = error[i].bits > most ? error[i].bits : most;
    for (int64_t i = 0; i < BLOCK; ++i) {{
      const double y = out[first + i], exact = wanted[i].value;
      *wrong += exact != exact ? y == y : y != y || copysign(1, exact) != copysign(1, y);
    }}
    if (most > largest.bits)
      for (int64_t i = 0; i < BLOCK; ++i)
        if (error[i].bits > largest.bits) largest = error[i], *at = in[first + i];
  }}
  return largest.value;
}}
"""


FORMS = {
    "sums": f"{POLYNOMIALS}{{fma=false}}",
    "fma": f"{POLYNOMIALS}{{fma=true}}",
    "contract": f"+contract after {POLYNOMIALS}",
}
"""How multiply-adds are made: as products and sums, by the polynomials, or of those by `contract`; what says so."""


def compiled(function: Measured, form: str) -> NativeModule:
    """The function of `CHUNK` numbers as the compiler makes it, in one of the `FORMS`."""
    tensor, memref = f"tensor<{CHUNK}xf32>", f"memref<{CHUNK}xf32>"
    text = f"""func.func @main(%x: {tensor}) -> {tensor} {{
      %y = {function.op} : {tensor}
      func.return %y : {tensor}
    }}"""
    if function.op.startswith("math."):
        text = f"""func.func @main(%in: {memref} {{graph.input = "x"}}, %out: {memref} {{graph.output = "y"}}) {{
          linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
              iterator_types = ["parallel"]}} ins(%in : {memref}) outs(%out : {memref}) {{
          ^bb0(%x: f32, %old: f32):
            %exponent = arith.constant {function.exponent:e} : f32
            %y = {function.op}
            linalg.yield %y : f32
          }}
          func.return
        }}"""
    ctx = make_context()
    module = parse_text(ctx, SourceText("<function>", text)).module
    compile_module(module, ctx, until="loop", pipeline=f"default, {FORMS[form]}")
    return load_native(module)


def comparison(function: Measured) -> Any:
    """The C function that compares results with exact values."""
    text = _COMPARE.format(exact=function.exact, unit=function.unit)
    library = load(build_library("compare", {"compare.c": text}, {}, content=text))
    found = library.largest_error
    found.restype = ctypes.c_double
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    return found


def errors(names: Sequence[str], step: int, form: str) -> list[list[str]]:
    """The largest error of each function, over every `step`th number."""
    rows: list[list[str]] = []
    for name in names:
        function = MEASURED[name]
        ours, compare = compiled(function, form), comparison(function)
        say(f"polynomials: {name}")
        worst, where = 0.0, 0.0
        wrong, at = ctypes.c_int64(), ctypes.c_float()
        offsets = np.arange(CHUNK, dtype=np.uint32) * np.uint32(step)
        for start in range(0, 1 << 32, CHUNK * step):
            x: NDArray[np.float32] = (offsets + np.uint32(start)).view(np.float32)
            (y,) = ours.run([x])
            found = compare(x.ctypes.data, y.ctypes.data, CHUNK, ctypes.byref(at), ctypes.byref(wrong))
            if found > worst:
                worst, where = found, at.value
        rows.append([name, f"{worst:.3f}", f"{where:.9g}", str(wrong.value)])
        print(" ".join(rows[-1]), flush=True)
    return rows


OPERATORS: dict[str, list[tuple[str, str, str]]] = {
    **{name.lower(): [(name, "x", "y")] for name in ("Erf", "Exp", "Log", "Sigmoid", "Softmax", "Tanh")},
    "gelu": [("Mul", "x a", "ax"), ("Add", "ax b", "line"), ("Gelu", "line", "y")],
}
"""The nodes of each model as operator, inputs, output; gelu is that of a * x + b."""


def speed(names: Sequence[str], side: int, *, fma: bool) -> list[Row]:
    """Each operator on `side` x `side` numbers, in C and in onnxruntime."""
    from onnx import TensorProto, helper

    import penstock

    edits = f"default, {POLYNOMIALS}{{fma=true}}, +contract after {POLYNOMIALS}" if fma else "default"
    x = np.abs(np.random.default_rng(0).standard_normal((side, side)).astype(np.float32)) + np.float32(0.01)
    rows: list[Row] = []
    for name in names:
        nodes = [helper.make_node(op, inputs.split(), [output]) for op, inputs, output in OPERATORS[name]]
        used = {each for _, inputs, _ in OPERATORS[name] for each in inputs.split()}
        numbers = {each: value for each, value in (("a", 1.5), ("b", -0.75)) if each in used}
        constants = [helper.make_tensor(each, TensorProto.FLOAT, [], [value]) for each, value in numbers.items()]
        ends = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [side, side]) for each in "xy"]
        graph = helper.make_graph(nodes, name, ends[:1], ends[1:], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        theirs = onnxruntime_on_one_thread(model, {"x": x}, optimised=True)
        engine = penstock.compile(model, pipeline=edits)

        def ours(engine: Any = engine) -> Sequence[object]:
            return engine.run([x])

        check_agreement(ours(), theirs(), name)
        at_most = 0.5 if name == "gelu" else None
        rows.append(
            paired(name, ours, "onnxruntime", theirs, repetitions=15, at_most=at_most, warm=False, scale=1e3, unit="ms")
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fit", "errors", "speed"))
    parser.add_argument("--functions", help="names, with commas between them; all by default")
    fused = parser.add_mutually_exclusive_group()
    fused.add_argument("--fma", action="store_true", help="polynomials of fused multiply-adds")
    fused.add_argument("--contract", action="store_true", help="`contract` after the polynomials; only of errors")
    parser.add_argument("--step", type=int, default=1, help="how many f32 apart the numbers are")
    parser.add_argument("--side", type=int, default=4096, help="of the matrices that are timed")
    args = parser.parse_args()
    known = OPERATORS if args.what == "speed" else MEASURED
    names = args.functions.split(",") if args.functions else list(known)
    if args.what == "fit":
        fit_all()
        return
    if args.what == "speed":
        print(table(speed(names, args.side, fma=args.fma)))
        return
    form = "fma" if args.fma else "contract" if args.contract else "sums"
    rows = errors(names, args.step, form)
    head = ["function", "largest error in ulp", "at", "of wrong kind or sign"]
    print(text_table(f"Form: {form}", head, rows))


if __name__ == "__main__":
    main()
