# SPDX-License-Identifier: Apache-2.0
"""
How much of MLIR's own text comes back unchanged: what mlir-opt prints in generic form is read, verified and printed by
us, and mlir-opt has to read that as the same.

    python benchmarks/mlir_text.py FOLDER [--locations] [--reasons 20] [--changed FOLDER]

FOLDER holds `.mlir` files such as MLIR's tests (`mlir/test/Dialect/{MemRef,SCF,Tensor,Affine,Linalg}`); every piece
between lines `// -----` that mlir-opt accepts counts. With `--locations` the text has them, of every operation and
block argument. Printed are the share that comes back unchanged and verified, the share that comes back unchanged, and
the reasons of the others, the most frequent first.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.targets.mlir import MLIRTarget

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.verification import verify_module
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text

MLIR_OPT = "mlir-opt-19"
_SEPARATOR = re.compile(r"^// -----.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """What became of a piece: what mlir-opt prints of it, and of what we print of it; None where it was refused."""

    place: str
    expected: str
    printed: str | None
    found: str | None
    fault: str | None
    """Why it was not read, not verified, or not read by mlir-opt."""

    @property
    def is_unchanged(self) -> bool:
        """Whether what came back is what was read."""
        return self.found == self.expected

    @property
    def reason(self) -> str:
        """The fault without what differs from piece to piece; of a changed piece the first word that changed."""
        if self.fault is not None:
            return _general(self.fault)
        pairs = zip(self.expected.splitlines(), (self.found or "").splitlines(), strict=False)
        changed = next(((a, b) for a, b in pairs if a != b), ("", ""))
        name = re.search(r'"([\w.]+)"\(', changed[0])
        return f"changed: {name[1] if name else _general(changed[0])}"


def _general(message: str) -> str:
    line = next((line for line in message.strip().splitlines() if line.strip()), "")
    line = re.sub(r"^\S+?:\d+:\d+: (error: )?", "", line)
    return re.sub(r"%\w+|\b\d+\b", "_", line)[:110]


def generic(text: str, flags: Sequence[str]) -> tuple[str, str]:
    """What mlir-opt prints of a text in generic form, and its errors."""
    command = [MLIR_OPT, "--allow-unregistered-dialect", "--mlir-print-op-generic", "--split-input-file", *flags]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return (done.stdout, "") if done.returncode == 0 else (done.stdout, done.stderr or "it crashed")


def pieces(text: str) -> list[str]:
    """What stands between the lines `// -----`, without what is empty."""
    return [piece for piece in _SEPARATOR.split(text) if piece.strip()]


def returned(place: str, expected: str, flags: Sequence[str]) -> Piece:
    """Read, verify and print a text that mlir-opt has printed, and give it back."""
    ctx, fault = make_context(allow_unregistered=True), None
    style = MLIRTarget(print_generic_format=True, print_debuginfo=bool(flags))
    try:
        module = parse_text(ctx, SourceText(place, expected)).module
    except UserError as error:
        return Piece(place, expected, None, None, str(error))
    except Exception as error:
        return Piece(place, expected, None, None, f"{type(error).__name__} on reading: {error}")
    try:
        module.verify()
        verify_module(module)
    except Exception as error:
        fault = f"not verified: {_said(error)}"
    printed = module_text(ctx, module, style)
    found, refusal = generic(printed, flags)
    if refusal:
        return Piece(place, expected, printed, None, f"mlir-opt: {refusal}")
    return Piece(place, expected, printed, "".join(pieces(found)), fault)


def _said(error: Exception) -> str:
    """The last line of what xDSL says, which follows the whole module."""
    lines = [line.strip(" ^") for line in str(error).splitlines() if line.strip(" ^")]
    return lines[-1] if lines else type(error).__name__


def measure(folder: Path, flags: Sequence[str]) -> list[Piece]:
    """Every piece of every file of a folder that mlir-opt accepts."""
    found: list[Piece] = []
    for path in sorted(folder.rglob("*.mlir")):
        for number, text in enumerate(pieces(generic(path.read_text(errors="replace"), flags)[0]), 1):
            found.append(returned(f"{path.relative_to(folder)}#{number}", text, flags))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the folder that is named and print the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="folder of .mlir files, looked through with all its folders")
    parser.add_argument("--locations", action="store_true", help="with the locations of operations and arguments")
    parser.add_argument("--reasons", type=int, default=20, metavar="N", help="how many reasons are listed")
    parser.add_argument(
        "--changed", type=Path, metavar="FOLDER", help="write here both texts of what did not come back"
    )
    options = parser.parse_args(arguments)
    if shutil.which(MLIR_OPT) is None:
        parser.error(f"{MLIR_OPT} is not installed; Debian's mlir-19-tools has it")
    found = measure(options.folder, ["--mlir-print-debuginfo"] if options.locations else [])
    if not found:
        parser.error(f"{options.folder} has no .mlir file that {MLIR_OPT} accepts")
    unchanged = [piece for piece in found if piece.is_unchanged]
    good = [piece for piece in unchanged if piece.fault is None]
    print(f"{len(found)} pieces")
    print(f"{len(good):6} {100 * len(good) / len(found):6.2f} % unchanged and verified")
    print(f"{len(unchanged):6} {100 * len(unchanged) / len(found):6.2f} % unchanged")
    bad = [piece for piece in found if piece.fault is not None or not piece.is_unchanged]
    places = {piece.reason: piece.place for piece in reversed(bad)}
    for reason, count in Counter(piece.reason for piece in bad).most_common(options.reasons):
        print(f"{count:6} {reason}    {places[reason]}")
    changed: Path | None = options.changed
    for piece in bad if changed is not None else ():
        assert changed is not None
        stem = changed / re.sub(r"\W+", "-", piece.place)
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".expected").write_text(piece.expected)
        stem.with_suffix(".found").write_text(f"// {piece.fault}\n{piece.found or piece.printed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
