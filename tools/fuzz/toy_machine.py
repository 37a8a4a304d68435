# SPDX-License-Identifier: Apache-2.0
"""Small machines that tests make up, which little fits into, with intrinsics for what random kernels are made of."""

from __future__ import annotations

from random import Random

OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
"""By the name in `arith`."""


def behaviours() -> dict[str, str]:
    """What the machine computes, by the names of its intrinsics: all ops of `tensor_programs` that have a name here."""
    found = {
        "matmul": "c[i,j] += a[i,k] * b[k,j]",
        "window": "c[i,j] += a[i+k,j] * b[k,j]",
        "strided_window": "c[i,j] += a[2*i+k,j] * b[k,j]",
        "sum": "c[i] += a[i,k]",
        "zero": "c[i,j] = 0",
        "zero_row": "c[i] = 0",
    }
    for name, sign in OPERATORS.items():
        found |= {
            name: f"c[i,j] = a[i,j] {sign} b[i,j]",
            f"{name}_row": f"c[i,j] = a[i,j] {sign} b[j]",
            f"{name}_column": f"c[i,j] = a[i,j] {sign} b[i]",
            f"{name}_transposed": f"c[i,j] = a[i,j] {sign} b[j,i]",
            f"{name}_twice": f"c[i,j] = a[i,j] {sign} a[i,j]",
            f"{name}_turned": f"c[i,j] = a[j,i] {sign} a[j,i]",
        }
    return found


def _table(kind: str, **values: object) -> str:
    lines = [f"{name} = {_value(value)}" for name, value in values.items()]
    return "\n".join([f"[[{kind}]]", *lines, ""])


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + " }"  # pyright: ignore
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"  # pyright: ignore
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def toy_machine(seed: int, element: str = "i32") -> str:
    """
    The text of a machine file: one scope, or another for results, or another between it and off chip; transfers in and
    out on units of their own or on one.
    """
    random = Random(seed)
    granule, block = random.choice((4, 4, 8, 16)), random.choice((1, 2, 4, 8))
    size = random.choice((512, 1024, 2048, 8192))
    shape = random.choice(("one", "one", "results", "levels"))
    load, store = random.choice((("load", "store"), ("load", "store"), ("dma", "dma")))
    outer, result = "l2" if shape == "levels" else "dram", "acc" if shape == "results" else "spad"
    scopes = ["spad"] + ["acc"] * (result == "acc")
    parts = ['[machine]\nname = "toy"\nfreq_mhz = 100\nassumed = true\n']
    if outer == "l2":
        parts.append(
            _table("scope", name="l2", size=4 * size, granule=granule, dtypes=[element], parent="dram", assumed=True)
        )
    parts += [
        _table("scope", name=name, size=size, granule=granule, dtypes=[element], parent=outer, assumed=True)
        for name in scopes
    ]
    parts += [_table("bus", name=name, rate=[8, 1], assumed=True) for name in ("in", "out")]
    parts += [_table("unit", name=unit) for unit in dict.fromkeys((load, "execute", store))]
    inward, outward = ["dram"], scopes
    engines = [("mvin", load, inward, scopes, "in"), ("mvout", store, outward, ["dram"], "out")]
    if outer == "l2":
        engines = [
            ("fetch", load, ["dram"], ["l2"], "in"),
            ("mvin", load, ["l2"], scopes, "in"),
            ("mvout", store, scopes, ["l2"], "out"),
            ("flush", store, ["l2"], ["dram"], "out"),
        ]
    for name, unit, start, end, bus in engines:
        parts.append(
            _table(
                "dma",
                name=name,
                unit=unit,
                **{"from": start, "to": end},
                bus=bus,
                dims=4,
                pad_max=random.choice((0, 64)) if bus == "in" else 0,
                latency=8,
                row_overhead=1,
                outstanding=random.choice((1, 4)),
                assumed=True,
                **random.choice(({}, {}, {"burst": [64, 3]}, {"burst": [32, 1], "padding": [16, 1]}, {"rate": [8, 3]})),
            )
        )
    for name, behaviour in behaviours().items():
        reads = [each for each in "ab" if f" {each}[" in behaviour]
        role = "inout" if "+=" in behaviour else "out"
        operands = [{"name": each, "scope": "spad", "dtype": element, "role": "in", "strides": "row"} for each in reads]
        operands.append({"name": "c", "scope": result, "dtype": element, "role": role, "strides": "row"})
        # What is computed in one scope is often read from there, so results are read from where they are, too.
        parts.append(
            _table(
                "intrinsic",
                name=name,
                unit="execute",
                behaviour=behaviour,
                operands=operands,
                shape={dim: [1, block] for dim in "ijk" if f"{dim}" in _dims(behaviour)},
                ii=1,
                depth=4,
                assumed=True,
            )
        )
    return "\n".join(parts)


def _dims(behaviour: str) -> set[str]:
    return {letter for letter in behaviour if letter in "ijk"}
