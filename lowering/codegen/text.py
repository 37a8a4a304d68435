# SPDX-License-Identifier: Apache-2.0
"""What texts of all languages are made of: unique names, expressions, and sizes that are known or computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
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

    def hinted(self, hint: str, endings: Sequence[str] = ()) -> str:
        """A name close to `hint`, which may be any text; with one of `endings` after it, it is taken as well."""
        return self._unique(identifier(hint), ("", *endings))

    def fresh(self, letter: str) -> str:
        """The next name made of a letter and a number."""
        while True:
            number = self._counts.get(letter, 0)
            self._counts[letter] = number + 1
            if (name := f"{letter}{number}") not in self._taken:
                self._taken.add(name)
                return name

    def _unique(self, name: str, endings: Sequence[str]) -> str:
        candidate, count = name, 1
        while not self._taken.isdisjoint(f"{candidate}{ending}" for ending in endings):
            count += 1
            candidate = f"{name}_{count}"
        self._taken.update(f"{candidate}{ending}" for ending in endings)
        return candidate


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

    @property
    def size(self) -> Size:
        """Its value as a size, if it is known, or the atom."""
        return self.atom if self.number is None else self.number


Size = int | str
"""An extent, a stride or an offset: known, or a C expression that is an atom."""
