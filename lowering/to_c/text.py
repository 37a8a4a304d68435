# SPDX-License-Identifier: Apache-2.0
"""Writing C: indented lines, sums and products, the headers of loops."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from penstock.lowering.codegen.text import Size, comment_text


class CWriter:
    """Lines of C at an indentation."""

    def __init__(self, depth: int = 0):
        self.lines: list[str] = []
        self._depth = depth

    def line(self, text: str) -> None:
        """One line; an empty one is not indented."""
        self.lines.append("  " * self._depth + text if text else "")

    def comment(self, text: str) -> None:
        """A comment of one line."""
        self.line(f"/* {comment_text(text)} */")

    @contextmanager
    def block(self, header: str = "") -> Generator[None]:
        """`header {`, what is written inside, and `}`."""
        self.line(f"{header} {{" if header else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def loops(self, headers: Sequence[str]) -> Generator[None]:
        """Nested loops, outermost first; without any, just what is inside."""
        if not headers:
            yield
            return
        with self.block(headers[0]), self.loops(headers[1:]):
            yield

    def text(self) -> str:
        """All lines, each ended."""
        return "".join(f"{line}\n" for line in self.lines)


def times(left: Size, right: Size) -> Size:
    """A product of sizes, an atom."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if 0 in (left, right):
        return 0
    if left == 1:
        return right
    return left if right == 1 else f"({left} * {right})"


def sum_of(terms: Sequence[tuple[Size, Size]], constant: int = 0) -> str:
    """The text of the sum of the products `terms`, plus a constant; not an atom."""
    parts: list[str] = []
    for left, right in terms:
        product = times(left, right)
        if isinstance(product, int):
            constant += product
        elif product.startswith("(") and " * " in product and product.count("(") == 1:
            parts.append(product[1:-1])
        else:
            parts.append(product)
    text = " + ".join(parts)
    if not text:
        return str(constant)
    if constant:
        text += f" + {constant}" if constant > 0 else f" - {-constant}"
    return text


def for_loop(name: str, extent: Size, *, step: Size = 1, start: Size = 0, type: str = "int64_t") -> str:
    """The header of a loop that counts `name` from `start` to below `extent`."""
    move = f"++{name}" if step == 1 and type == "int64_t" else f"{name} += {step}"
    return f"for ({type} {name} = {start}; {name} < {extent}; {move})"


def wrapped(parameters: Sequence[str]) -> str:
    """Parameters on one line, or where they are long, each on its own."""
    line = ", ".join(parameters)
    return line if len(line) <= 80 else "\n    " + ",\n    ".join(parameters)
