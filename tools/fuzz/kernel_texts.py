# SPDX-License-Identifier: Apache-2.0
"""Random kernels of the kernel language on small integers, and mutants of such texts."""

from __future__ import annotations

import random
import re

from penstock.lowering.from_kernel.parser import KEYWORDS

SHIFTS = ("", " + 1", " - 1", " - 2")


class KernelWriter:
    """A random kernel of small integers, which f32 adds and multiplies exactly."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.lines: list[str] = []
        self.tensors = ["a", "b"]
        """Those of N x M."""
        self.sizes = {"N": rng.randint(2, 7), "M": rng.randint(2, 7)}

    def text(self) -> str:
        """A whole kernel."""
        kinds = [self.elements, self.recurrence, self.branches, self.tiles, self.strides, self.parts, self.carried]
        for number in range(self.rng.randint(1, 4)):
            self.rng.choice(kinds)(f"t{number}")
        # What nothing reads is not computed.
        self.lines.append(
            f"y[i, j] = {' + '.join(f'{name}[i, j]' for name in self.tensors)} + {self.expression('i', 'j')}"
        )
        body = "\n".join(self.lines)
        head = f"kernel f[B = {self.rng.randint(2, 4)}](f32 a[N, M], f32 b[N, M], f32 v[M]) -> (f32 y[N, M])"
        return f"{head} {{\n{body}\n}}"

    # expressions

    def expression(self, i: str, j: str, depth: int = 2) -> str:
        """An element at `i` and `j`, which lie within N and M."""
        pick = self.rng.randrange(9) if depth else 0
        left, right = (self.expression(i, j, depth - 1) if depth else "" for _ in range(2))
        match pick:
            case 1 | 2:
                return f"{left} {self.rng.choice('+-')} ({right})"
            case 3:
                return f"{self.rng.choice(['max', 'min'])}({left}, {right})"
            case 4:
                return f"select({self.condition(i, j)}, {left}, {right})"
            case 5:
                return f"2 * ({left})"
            case 6:
                tensor = self.rng.choice(self.tensors)
                function = self.rng.choice(["sum", "max", "min"])
                return f"{function}(k{depth} in 0:M, {tensor}[{i}, k{depth}] + v[k{depth}])"
            case 7:
                return f"v[{j}]"
            case 8:
                return f"cast(f32, {self.rng.choice([i, j])})"
            case _:
                return self.read(self.rng.choice(self.tensors), i, j)

    def read(self, tensor: str, i: str, j: str) -> str:
        """An element near `i` and `j`, or one of the first."""
        rows, columns = (self.rng.choice(SHIFTS) for _ in range(2))
        outside = " else 3" if rows or columns else ""
        return f"{tensor}[{i}{rows}, {j}{columns}{outside}]"

    def condition(self, i: str, j: str) -> str:
        """Something about two indices, or about an element."""
        return self.rng.choice(
            [f"{i} <= {j}", f"{i} > 1", f"({i} + {j}) % 2 == 0", f"a[{i}, {j}] > 0", f"{j} + 2 > M and {i} == 0"]
        )

    # statements

    def elements(self, name: str) -> None:
        """A local, computed element by element; perhaps changed in its place."""
        self.lines.append(f"{name}[i in 0:N, j in 0:M] = {self.expression('i', 'j')}")
        if self.rng.random() < 0.5:
            self.lines.append(f"{name}[i, j] {self.rng.choice(['=', '+='])} {self.expression('i', 'j')}")
        if self.rng.random() < 0.3:
            self.lines.append(f"{name} = {name} + a")
        self.tensors.append(name)

    def recurrence(self, name: str) -> None:
        """A scan along one of two dims, one way or the other."""
        self.lines.append(f"f32 {name}[N, M]")
        back = self.rng.choice([" - 1", " - 2", " + 1"])
        other = self.rng.choice(SHIFTS)
        read = f"i{back}, j{other}" if self.rng.random() < 0.5 else f"i{other}, j{back}"
        if self.rng.random() < 0.5:
            read = f"i{back}, j" if "i " in read else f"i, j{back}"
        before = f"{name}[{read} else 1]"
        value = self.rng.choice([f"{before} + {{}}", f"max({before}, {{}})", f"{{}} - {before}"])
        self.lines.append(f"{name}[i, j] = {value.format(self.expression('i', 'j', 1))}")
        self.tensors.append(name)

    def branches(self, name: str) -> None:
        """A loop over rows that does one thing or another."""
        self.lines += [f"f32 {name}[N, M] = b", "for n in 0:N {"]
        condition = self.rng.choice(["n == 0", "n + 1 < N", "n % 2 == 1", "a[n, 0] > 0", "n > 1 and not n == N - 1"])
        operator = self.rng.choice(["=", "+="])
        self.lines += [f"if {condition} {{", f"{name}[n, j] {operator} {self.expression('n', 'j', 1)}"]
        if self.rng.random() < 0.6:
            self.lines += ["} else {", f"h = 2 * a[n, :]\n{name}[n, :] = h + {name}[n, :]"]
        self.lines += ["}", "}"]
        self.tensors.append(name)

    def tiles(self, name: str) -> None:
        """Tiles of rows, of which the last may pass the end."""
        source = self.rng.choice(self.tensors)
        if self.rng.random() < 0.5:
            self.lines += [
                f"f32 {name}[N, M] = 1",
                "for i0 in 0:N:B {",
                f"{name}[i0:+B, :] += {source}[i0:+B, : else 0]",
                "}",
            ]
        else:
            self.lines += [f"f32 {name}[N, M]", "grid i0 in 0:N:B {", f"tile = {source}[i0:+B, : else 2]"]
            self.lines += ["tile = tile + max(tile, 1)", f"{name}[i0:+B, :] = tile", "}"]
        self.tensors.append(name)

    def strides(self, name: str) -> None:
        """Rows by turns, and sums of two of them."""
        one, other = (self.expression("i", "j", 1) for _ in range(2))
        self.lines += [f"f32 {name}s[2 * N, M]"]
        self.lines += [f"{name}s[2 * i, j] = {one} + a[i, j]", f"{name}s[2 * i + 1, j] = {other} + b[i, j]"]
        self.lines += [f"{name}[i in 0:N, j in 0:M] = {name}s[2 * i, j] - {name}s[2 * i + 1, j] + {name}s[i, j]"]
        self.tensors.append(name)

    def parts(self, name: str) -> None:
        """Two parts of a tensor."""
        self.lines += [f"f32 {name}[N, M]", f"{name}[0, j] = {self.expression('0', 'j', 1)}"]
        self.lines += [f"{name}[i in 1:N, j] = {self.expression('i', 'j', 1)}"]
        self.tensors.append(name)

    def carried(self, name: str) -> None:
        """A row that a loop carries."""
        self.lines += [f"f32 {name}[N, M]", "f32 row[M] = v" if "f32 row[M] = v" not in self.lines else "row = v"]
        self.lines += ["for n in 0:N {", f"row[j] += {self.expression('n', 'j', 1)}", f"{name}[n, j] = row[j]", "}"]
        self.tensors.append(name)


def mutated(text: str, rng: random.Random) -> str:
    """A text with some names, numbers and operators replaced by others, or a line gone or repeated."""
    tokens = re.findall(r"\w+|\s+|[^\w\s]", text)
    names = [each for each in tokens if each.isidentifier() and each not in KEYWORDS and each != "f32"]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(tokens))
        if tokens[at] in names or tokens[at].isdigit():
            tokens[at] = rng.choice([*names, *"01237"])
        elif tokens[at] in "+-*<>%":
            tokens[at] = rng.choice("+-*<>%")
        elif tokens[at] in ",:":
            tokens[at] = rng.choice([" + ", ":+", ","])
        elif "\n" in tokens[at]:
            lines = "".join(tokens).split("\n")
            number = rng.randrange(1, len(lines))
            lines[number : number + 1] = rng.choice([[], [lines[number], rng.choice(lines[1:])]])
            tokens = re.findall(r"\w+|\s+|[^\w\s]", "\n".join(lines))
    return "".join(tokens)
