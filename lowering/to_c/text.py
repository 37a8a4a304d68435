"""Writing C: indented lines, unique names, and expressions that know whether they need parentheses."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "bool true false main ctx weights inputs outputs NAN INFINITY memcpy memset int8_t int16_t int32_t int64_t "
    "uint8_t uint16_t uint32_t uint64_t size_t asm typeof".split()
)

_FUNCTIONS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma "
    "fmax fmin fmod frexp hypot ilogb ldexp lgamma log log10 log1p log2 logb modf nan nearbyint nextafter pow "
    "remainder remquo rint round scalbn sin sinh sqrt tan tanh tgamma trunc"
).split()
_CALLED = frozenset(
    [f"{name}{suffix}" for name in _FUNCTIONS for suffix in ("", "f", "l")]
    + "memcmp memmove isfinite isinf isnan signbit".split()
)
"""What the C library defines in the headers that programs include: a variable of the name would hide the function."""

_GENERATED = re.compile(r"[dijkv]\d+(_\d+)*|(acc|panel|lo|hi|at)\d+|pen_.*|PENSTOCK.*")
"""Names that the generator itself gives; an SSA value that is called so gets another one."""

_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]+")
_NUMBER = re.compile(r"\d+")


def identifier(text: str) -> str:
    """`text` as a C identifier, the same one every time."""
    name = _IDENTIFIER.sub("_", text).strip("_")
    if not name or name[0].isdigit():
        name = f"x_{name}" if name else "x"
    reserved = name in _KEYWORDS or name in _CALLED or _GENERATED.fullmatch(name)
    return f"{name}_" if reserved else name


class Names:
    """The names of one C function; each is given out once."""

    def __init__(self, taken: Sequence[str] = ()):
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def hinted(self, hint: str) -> str:
        """A name close to `hint`, which may be any text."""
        return self._unique(identifier(hint))

    def fresh(self, letter: str) -> str:
        """The next name made of a letter and a number."""
        while True:
            number = self._counts.get(letter, 0)
            self._counts[letter] = number + 1
            if (name := f"{letter}{number}") not in self._taken:
                self._taken.add(name)
                return name

    def _unique(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate


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


def comment_text(text: str) -> str:
    """`text` so that it can stand in a comment on one line."""
    return " ".join(text.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").split())


@dataclass(frozen=True)
class Expr:
    """A C expression without side effects; an atom needs no parentheses anywhere."""

    text: str
    """As it is written."""
    is_atom: bool = False
    """Whether it is a name, a literal or a call."""

    @property
    def atom(self) -> str:
        """The expression as an operand of any operator."""
        return self.text if self.is_atom else f"({self.text})"

    @property
    def number(self) -> int | None:
        """Its value, if it is an integer literal of plain digits."""
        text = self.text.removeprefix("-")
        return int(self.text) if _NUMBER.fullmatch(text) else None


Size = int | str
"""An extent, a stride or an offset: known, or a C expression that is an atom."""


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
