"""
Compiles the digits network for a scratchpad machine, runs it at every level, and shows what was decided.

`make demo` runs it. It imports `digits.onnx`, lowers it for a machine (gemmini-fp32 by default), runs the held-out
images at the graph level on the interpreter and, from loop and accel level, as C, the first of them on the interpreter
at the tensor, loop and accel level too, and prints:

- whether all levels agree with the graph level, and how many digits each recognises;
- the map of every scratchpad: what lies where and when, its peak against the capacity and the lower bound;
- the bytes that the DMA engines moved against the compulsory ones, those that must cross the chip's edge once;
- where the files are: the text of each level, its weights, and the C.

Exit status: 0 if all levels agree and recognise 97 % of the digits, else 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import UserError, render_location
from penstock.lowering.to_c import emit_c
from penstock.passes.analysis.commands.traffic import compulsory_bytes
from penstock.passes.analysis.kernels import kernels, partition, share_on_machine
from penstock.passes.analysis.memory.memory_problems import PlacedBuffer, ScopePlan, plan_report
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import LoadedProgram, compile_module, load_input
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.levels import LEVELS
from penstock.tools.programs import write_c, write_program

Array = NDArray[Any]
Run = Callable[[Array], Array]

HERE = Path(__file__).parent
WANTED_ACCURACY = 0.97
TOLERANCE = 1e-4
"""How far a score may be from that of the graph level: sums of 512 products in f32, in another order."""
MAP_ROWS, MAP_COLUMNS = 8, 56
"""The size of a map of a scratchpad, in characters."""


@dataclass(frozen=True)
class Result:
    """The scores of all images at one level, and the seconds they took."""

    level: str
    how: str
    scores: Array
    seconds: float


def table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns of text; all but the first are aligned at their end."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        text = [first.ljust(widths[0])]
        text += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return (indent + "  ".join(text)).rstrip()

    return "\n".join([line(head), indent + "  ".join("-" * width for width in widths), *map(line, rows)])


def title(text: str) -> None:
    """A heading on stdout."""
    print(f"\n{text}\n{'=' * len(text)}")


def compiled(model: Path, machine: str, level: str) -> LoadedProgram:
    """The model lowered to the end of a level."""
    program = load_input(model)
    compile_module(program.module, program.ctx, machine, level)
    return program


def interpreted(program: LoadedProgram, counters: Counters | None = None) -> Run:
    """Runs a program on the interpreter, sums in the order of the loops."""
    module, weights = program.module, program.ctx.weights
    return lambda image: run_module(module, [image], weights, counters=counters, ordered=True)[0]


def native(program: LoadedProgram) -> Run:
    """Runs a program as C; raises UserError if it cannot be built."""
    engine = Engine(program.module, program.ctx, backend="native")
    return lambda image: engine(image)[0]


def run_all(level: str, how: str, run: Run, images: Array) -> Result:
    """The scores of all images, one after the other."""
    start = time.perf_counter()
    scores = np.concatenate([run(image[None]) for image in images])
    return Result(level, how, scores, time.perf_counter() - start)


# agreement


def print_agreement(results: Sequence[Result], labels: Array) -> bool:
    """Print how far each level is from the first and what it recognises; return whether all is well."""
    title("Every level runs: held-out images, and scores against the graph level and the row above")
    reference = results[0].scores
    rows: list[list[str]] = []
    agreed = True
    for result, above in zip(results, (results[0], *results), strict=False):
        count = len(result.scores)
        both = min(count, len(above.scores))
        difference = float(np.abs(result.scores - reference[:count]).max())
        equal = int((result.scores[:both] == above.scores[:both]).all(axis=1).sum())
        accuracy = float((result.scores.argmax(1) == labels[:count]).mean())
        agreed &= bool(difference <= TOLERANCE) and accuracy >= WANTED_ACCURACY
        rows.append(
            [
                f"{result.level}, {result.how}",
                str(count),
                f"{accuracy:.2%}",
                f"{difference:.2e}",
                f"{equal} of {both}" if rows else "-",
                f"{1e3 * result.seconds / count:.2f} ms",
            ]
        )
    print(table(["level", "images", "accuracy", "largest difference", "bitwise as above", "an image"], rows))
    print(
        f"\n  scores reach {np.abs(reference).max():.1f}; the graph level and onnxruntime sum in an order of their own,"
    )
    print("  hence the rounding there")
    return agreed


# scratchpads


def print_plans(module: ModuleOp) -> None:
    """Print the plan of every scope of every kernel, as read back from the text of the accel level."""
    plans = plan_report(module)
    title("The scratchpads: peak, capacity and lower bound in bytes")
    names = kernel_names(module)
    rows = [
        [
            f"{names.get(plan.function, 'whole program')}",
            plan.scope,
            str(len(plan.buffers)),
            f"{plan.peak:,}",
            "-" if plan.capacity is None else f"{plan.capacity:,}",
            f"{plan.lower_bound:,}",
            "optimal" if plan.is_optimal else f"+{plan.peak / max(plan.lower_bound, 1) - 1:.0%}",
        ]
        for plan in plans
    ]
    print(table(["kernel", "scope", "buffers", "peak", "capacity", "lower bound", "verdict"], rows))
    for plan in plans:
        print(f"\n  {names.get(plan.function, 'whole program')}, {plan.scope}")
        print_buffers(plan)
        if len(plan.buffers) > 1:
            print_map(plan)


def kernel_names(module: ModuleOp) -> dict[str, str]:
    """For each function a name that says what it computes: the location that it has from the model."""
    return {
        function.sym_name.data: f"@{function.sym_name.data} {render_location(function.location)}".strip()
        for function in kernels(module)
    }


def letter(number: int) -> str:
    """The letter of a buffer in a map."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return letters[number % len(letters)]


def print_buffers(plan: ScopePlan) -> None:
    """Print offset, size and lifetime of every buffer."""
    rows = [
        [
            f"{letter(number)} {buffer.name}",
            f"{buffer.offset:,}",
            f"{buffer.size:,}",
            ", ".join(f"{start}..{end}" for start, end in buffer.intervals),
            buffer.type,
        ]
        for number, buffer in enumerate(plan.buffers)
    ]
    print(table(["buffer", "offset", "bytes", "alive", "type"], rows, "    "))


def print_map(plan: ScopePlan) -> None:
    """Print a map of the scope: addresses downwards, time to the right, a letter where a buffer lives."""
    start = min(lower for buffer in plan.buffers for lower, _ in buffer.intervals)
    end = max(upper for buffer in plan.buffers for _, upper in buffer.intervals)
    columns = min(end - start, MAP_COLUMNS)
    rows = min(plan.peak, MAP_ROWS)
    print(f"\n      byte  time {start} to {end}")
    for row in range(rows):
        low, high = plan.peak * row // rows, plan.peak * (row + 1) // rows
        cells = ""
        for column in range(columns):
            first = start + (end - start) * column // columns
            last = start + (end - start) * (column + 1) // columns
            cells += cell(plan.buffers, (low, high), (first, last))
        print(f"  {low:>8,}  |{cells}|")


def cell(buffers: Sequence[PlacedBuffer], bytes: tuple[int, int], moments: tuple[int, int]) -> str:
    """The letter of the buffer that takes most of a cell of the map, or a dot if none is there."""
    best, share = ".", 0
    for number, buffer in enumerate(buffers):
        height = min(buffer.offset + buffer.size, bytes[1]) - max(buffer.offset, bytes[0])
        width = max(min(end, moments[1]) - max(start, moments[0]) for start, end in buffer.intervals)
        if height > 0 and width > 0 and height * width > share:
            best, share = letter(number), height * width
    return best


# transfers


def print_partition(module: ModuleOp) -> None:
    """Print where each kernel runs and, on the host, which op no intrinsic covers."""
    title("What runs where")
    placements = partition(module)
    rows = [
        [f"@{each.kernel} {each.location}", f"{each.macs:,}", each.device, each.remark and f"  {each.remark}"]
        for each in placements
    ]
    width = max((len(row[-1]) for row in rows), default=0)
    rows = [[*row[:-1], row[-1].ljust(width)] for row in rows]
    print(table(["kernel", "multiply-accumulates", "device", "  why not the machine".ljust(width)], rows))
    total = sum(each.macs for each in placements)
    print(f"\n  {share_on_machine(placements):.1%} of {total:,} multiply-accumulates run on the machine")


def print_transfers(module: ModuleOp, counters: Counters, images: int) -> None:
    """Print what the machine did for one image."""
    title("What the machine does for one image")
    rows = [
        [name, f"{count.commands // images:,}", f"{count.bytes_in // images:,}", f"{count.bytes_out // images:,}"]
        for name, count in counters.dma.items()
    ]
    into, out = counters.bytes_in // images, counters.bytes_out // images
    compulsory_in, compulsory_out = compulsory_bytes(module)
    rows.append(["all", "", f"{into:,}", f"{out:,}"])
    rows.append(["compulsory", "", f"{compulsory_in:,}", f"{compulsory_out:,}"])
    rows.append(["ratio", "", f"{into / max(compulsory_in, 1):.2f}", f"{out / max(compulsory_out, 1):.2f}"])
    print(table(["DMA engine", "commands", "bytes in", "bytes out"], rows))
    print()
    rows = [
        [name, f"{count.commands // images:,}", f"{count.issues // images:,}", f"{count.macs // images:,}"]
        for name, count in counters.intrinsics.items()
    ]
    print(table(["intrinsic", "commands", "issues", "multiply-accumulates"], rows))


# files


def write_files(programs: dict[str, LoadedProgram], folder: Path) -> None:
    """Write the text of each level with its weights, and the C of the loop and the accel level."""
    folder.mkdir(parents=True, exist_ok=True)
    for level, program in programs.items():
        write_program(program, folder / f"{level}.mlir")
    for level in ("loop", "accel"):
        program = programs[level]
        write_c(folder / f"{level}_c", program, emit_c(program.module))
    title(f"The files, in {folder}")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"  {path.relative_to(folder)!s:<28} {path.stat().st_size:>9,} bytes")


def onnxruntime_result(model: Path, images: Array) -> Result | None:
    """The scores of the outside witness, where it is installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session: Any = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return run_all("model", "onnxruntime", lambda image: session.run(None, {"image": image})[0], images)


def as_c(level: str, program: LoadedProgram, images: Array) -> list[Result]:
    """The result of the generated C; nothing, and the reason on stderr, where there is no C compiler."""
    try:
        find_compiler()
    except UserError as error:
        print(f"{level} level is not run as C: {error}", file=sys.stderr)
        return []
    return [run_all(level, "as C", native(program), images)]


def demonstrate(machine: str, folder: Path, count: int | None, interpreted_count: int) -> bool:
    """
    Run the demonstration on `count` images, `interpreted_count` of them on the interpreter below graph level.

    Returns whether all is well. Raises UserError for what cannot be compiled.
    """
    model = HERE / "digits.onnx"
    with np.load(HERE / "test_images.npz") as file:
        images, labels = file["images"][:count], file["labels"][:count]
    few = images[:interpreted_count]
    programs = {level: compiled(model, machine, level) for level in LEVELS}
    counters = Counters()
    graph, tensor, loop, accel = (programs[level] for level in LEVELS)
    results = [
        run_all("graph", "interpreted", interpreted(graph), images),
        run_all("tensor", "interpreted", interpreted(tensor), few),
        run_all("loop", "interpreted", interpreted(loop), few),
        *as_c("loop", loop, images),
        run_all("accel", "interpreted", interpreted(accel, counters), few),
        *as_c("accel", accel, images),
    ]
    if (witness := onnxruntime_result(model, images)) is not None:
        results.append(witness)
    print(f"digits.onnx, compiled for {machine}")
    well = print_agreement(results, labels)
    print_partition(accel.module)
    print_plans(accel.module)
    print_transfers(accel.module, counters, len(few))
    write_files(programs, folder)
    return well


def main() -> int:
    """Read the command line and run the demonstration."""
    parser = argparse.ArgumentParser(description="compile and run a small network on a scratchpad machine")
    parser.add_argument("--machine", default="gemmini-fp32", help="the name of a machine, or the path of its file")
    parser.add_argument("--output-dir", type=Path, default=Path("build/digits"), help="where the files go")
    parser.add_argument("--images", type=int, default=None, help="how many of the 360 images; all by default")
    parser.add_argument(
        "--interpret", type=int, default=60, help="how many of them the interpreter runs below graph level: 60"
    )
    args = parser.parse_args()
    try:
        well = demonstrate(args.machine, args.output_dir, args.images, args.interpret)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.status
    print("\nall levels agree" if well else "\na level disagrees, or recognises too few digits")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
