# SPDX-License-Identifier: Apache-2.0
"""Machine files with parts left out or changed, and small programs that they may compute."""

from __future__ import annotations

import re
from functools import cache
from random import Random

from penstock.lowering.machine_names import machine_text

MACHINES = (
    "gemmini-fp32",
    "rapid-core-like",
    "gemmini",
    "smaug-smv",
    "snax-opengemm",
    "neural-accelerator",
    "vta-pynq",
)

PROGRAMS = {
    "layer": """func.func @main(%x: tensor<6x12xT>, %w: tensor<12x8xT>, %b: tensor<8xA>) -> tensor<6x8xA> {
      %p = graph.matmul %x, %w ACC : (tensor<6x12xT>, tensor<12x8xT>) -> tensor<6x8xA>
      %s = graph.add %p, %b : (tensor<6x8xA>, tensor<8xA>) -> tensor<6x8xA>
      %r = graph.relu %s : tensor<6x8xA>
      func.return %r : tensor<6x8xA>
    }""",
    "residual": """func.func @main(%x: tensor<8x8xT>, %w: tensor<8x8xT>, %c: tensor<8x8xA>) -> tensor<8x8xA> {
      %p = graph.matmul %x, %w ACC : (tensor<8x8xT>, tensor<8x8xT>) -> tensor<8x8xA>
      %q = graph.mul %p, %c : (tensor<8x8xA>, tensor<8x8xA>) -> tensor<8x8xA>
      %s = graph.add %q, %p : (tensor<8x8xA>, tensor<8x8xA>) -> tensor<8x8xA>
      func.return %s : tensor<8x8xA>
    }""",
    "convolution": """func.func @main(%x: tensor<1x4x6x5xT>, %w: tensor<8x4x3x3xT>) -> tensor<1x8x6x5xA> {
      %c = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] ACC
          : (tensor<1x4x6x5xT>, tensor<8x4x3x3xT>) -> tensor<1x8x6x5xA>
      func.return %c : tensor<1x8x6x5xA>
    }""",
}


@cache
def tables(machine: str) -> tuple[str, ...]:
    """The tables of a file, the first of them what stands before all others."""
    return tuple(re.split(r"(?m)^(?=\[\[)", machine_text(machine)[1]))


def changed(random: Random, machine: str) -> str:
    """The text of a file with one to three changes."""
    parts = list(tables(machine))
    scopes = re.findall(r'(?m)^\[\[scope\]\][^\[]*?^name = "(\w+)"', "".join(parts))
    for _ in range(random.randint(1, 3)):
        number = random.randrange(1, len(parts))
        part = parts[number]
        match random.randrange(6):
            case 0 | 1:
                parts[number] = ""
            case 2:  # one scope fewer that an engine leads from or to
                lists = re.findall(r"(?m)^(?:from|to) = \[.*?,.*?\]", part)
                if lists:
                    one = random.choice(lists)
                    names = re.findall(r'"(\w+)"', one)
                    names.remove(random.choice(names))
                    kept = ", ".join(f'"{name}"' for name in names)
                    parts[number] = part.replace(one, f"{one[: one.index('=')]}= [{kept}]")
            case 3:  # another scope
                parts[number] = part.replace(f'"{random.choice(scopes)}"', f'"{random.choice([*scopes, "dram"])}"')
            case 4:  # another size, granule, limit or block
                numbers = re.findall(r"(?m)^(?:size|granule|dims|pad_max|align) = (\d+)", part)
                if numbers:
                    old = random.choice(numbers)
                    parts[number] = part.replace(f"= {old}", f"= {random.choice((1, 4, 16, 64, 512, 4096))}", 1)
            case _:  # an operand or a dim that the intrinsic cannot move by rows
                parts[number] = part.replace(', strides = "row"', "", 1)
    return "".join(parts)


def program(random: Random, text: str) -> str:
    """A program in types that some intrinsic multiplies, or in floats."""
    found = re.findall(r'dtype = "(\w+)"', text)
    types = ("i8", "i32", "accumulate i32") if "i8" in found else ("f32", "f32", "")
    name = random.choice(list(PROGRAMS))
    return PROGRAMS[name].replace("ACC", types[2]).replace("xT>", f"x{types[0]}>").replace("xA>", f"x{types[1]}>")
