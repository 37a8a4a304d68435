# SPDX-License-Identifier: Apache-2.0
"""
Parse, verify and print a module of 10,000 operations: penstock-opt beside xdsl-opt.

Ours does more: it checks dominance and slices, and records where every operation stands. In this process the two
commands read the same file; as processes of their own, their start is measured as well.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, as_installed, limited, once, paired, report, say

OPERATIONS = 10_000
AT_MOST = 1.0
"""The ratio aimed at."""
START = 0.4
"""CPU seconds aimed at for a small file, the start of Python included."""
GRAPH = (
    "func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {\n"
    "  %v0 = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>\n"
    + "".join(f"  %v{n} = graph.relu %v{n - 1} : tensor<4x8xf32>\n" for n in range(1, 17))
    + "  func.return %v16 : tensor<4x8xf32>\n}\n"
)
"""20 lines at the graph level."""

_PIECE = """\
    %from_{n} = arith.constant {n} : index
    %step_{n} = arith.constant 16 : index
    %scale_{n} = arith.constant 1.500000e+00 : f32
    %tile_{n} = memref.subview %a[%from_{n}, 0] [16, 128] [1, 1] : memref<4096x128xf32> to \
memref<16x128xf32, strided<[128, 1], offset: ?>>
    scf.for %i_{n} = %from_{n} to %end step %step_{n} {{
      %x_{n} = memref.load %a[%i_{n}, %from_{n}] : memref<4096x128xf32>
      %y_{n} = memref.load %b[%i_{n}] : memref<4096xf32>
      %p_{n} = arith.mulf %x_{n}, %scale_{n} : f32
      %s_{n} = arith.addf %p_{n}, %y_{n} : f32
      memref.store %s_{n}, %b[%i_{n}] : memref<4096xf32>
    }}
    linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], \
iterator_types = ["parallel", "parallel"]}} ins(%tile_{n} : memref<16x128xf32, strided<[128, 1], offset: ?>>) \
outs(%c : memref<16x128xf32>) {{
    ^bb0(%in_{n}: f32, %out_{n}: f32):
      %m_{n} = arith.mulf %in_{n}, %in_{n} : f32
      %t_{n} = arith.addf %m_{n}, %out_{n} : f32
      linalg.yield %t_{n} : f32
    }}
    %d_{n} = func.call @next(%from_{n}, %step_{n}) : (index, index) -> index
"""
"""15 operations: the counted ones and the implied scf.yield."""

_OPERATIONS_IN_PIECE = 15


def text(operations: int = OPERATIONS) -> str:
    """A module of about so many operations of func, arith, scf, memref and linalg."""
    pieces = "".join(_PIECE.format(n=n) for n in range(operations // _OPERATIONS_IN_PIECE))
    return (
        "func.func private @next(index, index) -> index\n"
        "func.func @work(%a: memref<4096x128xf32>, %b: memref<4096xf32>, %c: memref<16x128xf32>, %end: index) {\n"
        f"{pieces}    func.return\n}}\n"
    )


def ours(path: str) -> str:
    """What penstock-opt prints for a file."""
    from penstock.tools import opt

    out = io.StringIO()
    with redirect_stdout(out):
        status = opt.run([path])
    assert status == 0
    return out.getvalue()


def theirs(path: str) -> str:
    """What xdsl-opt prints for a file."""
    from xdsl.xdsl_opt_main import xDSLOptMain

    out = io.StringIO()
    with redirect_stdout(out):
        xDSLOptMain(args=[path]).run()
    return out.getvalue()


def process(command: str, argument: str, bytecode: Path) -> None:
    """Run a command of this environment on a file, or with a flag."""
    program = Path(sys.executable).with_name(command)
    environment = {**os.environ, **as_installed(bytecode)}
    subprocess.run([str(program), argument], stdout=subprocess.DEVNULL, check=True, env=environment)


def rows() -> Sequence[Row]:
    """Both ways of running, on the module and on a small one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "module.mlir")
        path.write_text(text())
        small = Path(folder, "small.mlir")
        small.write_text(text(20))
        assert ours(str(path)).split() == theirs(str(path)).split(), "the two print another module"
        say("text: in one process")
        name = f"parse, verify, print {OPERATIONS:,} ops"
        found = [
            paired(
                f"{name}, in process",
                lambda: ours(str(path)),
                "xdsl-opt",
                lambda: theirs(str(path)),
                repetitions=5,
                at_most=AT_MOST,
                warm=False,
            )
        ]
        whole, twenty = f"{name}, whole process", "the same of 20 operations"
        bytecode = Path(folder, "bytecode")
        for label, argument, limit in ((whole, str(path), AT_MOST), (twenty, str(small), None)):
            say(f"text: {label}")
            found.append(
                paired(
                    label,
                    lambda argument=argument: process("penstock-opt", argument, bytecode),
                    "xdsl-opt",
                    lambda argument=argument: process("xdsl-opt", argument, bytecode),
                    repetitions=3,
                    at_most=limit,
                )
            )
        graph = Path(folder, "graph.mlir")
        graph.write_text(GRAPH)
        for label, argument in (
            ("--help", "--help"),
            ("20 operations of memref, scf and linalg", str(small)),
            ("20 lines of graph", str(graph)),
        ):
            say(f"text: {label}")
            least = min(once(lambda argument=argument: process("penstock-opt", argument, bytecode)) for _ in range(5))
            found.append(limited(f"penstock-opt, {label}", least, START))
        return found


if __name__ == "__main__":
    report(rows, __doc__)
