# SPDX-License-Identifier: Apache-2.0
"""Random valid programs with control flow: branches, loops, calls, functions of several blocks, at each level."""

from __future__ import annotations

from random import Random

LEVELS = ("graph", "tensor", "loop", "accel")

TARGET = """machine.target @small frequency 100 {
  machine.scope @sram size 4096 granule 16 dtypes [f32]
  machine.unit @load
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@sram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.dma @mvout unit @store from [@sram] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
}
"""

_SHAPE = "4x4xf32"
_ON_CHIP = f'memref<{_SHAPE}, "sram">'
_ID = "affine_map<(i, j) -> (i, j)>"


class _Function:
    """Writes the body of one function. Values are kept by what they are; each scope of names is a copy of the pool."""

    def __init__(self, random: Random, level: str, helpers: list[str]):
        self.random = random
        self.level = level
        self.helpers = helpers
        self.type = f"tensor<{_SHAPE}>" if level in ("graph", "tensor") else f"memref<{_SHAPE}>"
        self.on_tensors = level in ("graph", "tensor")
        self.lines: list[str] = []
        self.count = 0
        self.indent = 1

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"%{prefix}{self.count}"

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    def pick(self, pool: dict[str, list[str]], kind: str) -> str:
        return self.random.choice(pool[kind])

    def inner(self, pool: dict[str, list[str]]) -> dict[str, list[str]]:
        return {kind: list(names) for kind, names in pool.items()}

    # statements

    def statements(self, pool: dict[str, list[str]], depth: int, most: int = 3) -> None:
        for _ in range(self.random.randint(1, most)):
            kinds = [self.compute, self.compute, self.compare]
            if depth:
                kinds += [self.branch, self.loop, self.whilst, self.switch, self.execute_region]
            if self.helpers:
                kinds.append(self.call)
            self.random.choice(kinds)(pool, depth)

    def compute(self, pool: dict[str, list[str]], depth: int) -> None:
        one, other, result = self.pick(pool, "data"), self.pick(pool, "data"), self.fresh()
        if self.level == "graph":
            op = self.random.choice((f"graph.neg {one}", f"graph.relu {one}", f"graph.add {one}, {other}"))
            types = f"({self.type}, {self.type}) -> {self.type}" if "add" in op else self.type
            self.line(f"{result} = {op} : {types}")
            pool["data"].append(result)
        elif self.level == "tensor":
            empty = self.fresh("e")
            self.line(f"{empty} = tensor.empty() : {self.type}")
            self.generic(f"{result} = ", one, empty, f" -> {self.type}")
            pool["data"].append(result)
        elif self.level == "loop":
            self.on_memrefs(pool, one, result)
        else:
            self.commands(one, self.pick(pool, "out"))

    def generic(self, target: str, source: str, dest: str, result: str) -> None:
        a, b, c = self.fresh("a"), self.fresh("b"), self.fresh("c")
        self.line(
            f"{target}linalg.generic {{indexing_maps = [{_ID}, {_ID}],"
            f' iterator_types = ["parallel", "parallel"]}} ins({source} : {self.type}) outs({dest} : {self.type}) {{'
        )
        self.line(f"^bb0({a}: f32, {b}: f32):")
        self.line(f"  {c} = arith.addf {a}, {a} : f32")
        self.line(f"  linalg.yield {c} : f32")
        self.line("}" + result)

    def on_memrefs(self, pool: dict[str, list[str]], source: str, result: str) -> None:
        kind = self.random.choice(("alloc", "buffer", "scope", "out"))
        if kind == "out":
            self.generic("", source, self.pick(pool, "out"), "")
            return
        if kind == "scope":
            self.line(f"{result} = mem.buffer : {_ON_CHIP}")
            self.line(f"mem.copy {source} to {result} : {self.type} to {_ON_CHIP}")
            self.line(f"mem.copy {result} to {self.pick(pool, 'out')} : {_ON_CHIP} to {self.type}")
            return
        self.line(f"{result} = {'memref.alloc()' if kind == 'alloc' else 'mem.buffer'} : {self.type}")
        self.generic("", source, result, "")
        pool["data"].append(result)

    def commands(self, source: str, dest: str) -> None:
        buffer, load, store = self.fresh("b"), self.fresh("t"), self.fresh("t")
        self.line(f"{buffer} = mem.buffer at {64 * self.random.randint(0, 3)} : {_ON_CHIP}")
        self.line(f'{load} = accel.dma {source} to {buffer} on "mvin" : {self.type} to {_ON_CHIP}')
        self.line(f'{store} = accel.dma {buffer} to {dest} on "mvout" after ({load}) : {_ON_CHIP} to {self.type}')
        self.line(f"accel.wait {store}")

    def compare(self, pool: dict[str, list[str]], depth: int) -> None:
        result = self.fresh("p")
        one, other = self.pick(pool, "index"), self.pick(pool, "index")
        self.line(f"{result} = arith.cmpi slt, {one}, {other} : index")
        pool["flag"].append(result)

    def call(self, pool: dict[str, list[str]], depth: int) -> None:
        callee = self.random.choice(self.helpers)
        one = self.pick(pool, "data")
        if self.on_tensors:
            result = self.fresh()
            self.line(f"{result} = func.call @{callee}({one}) : ({self.type}) -> {self.type}")
            pool["data"].append(result)
        else:
            self.line(f"func.call @{callee}({one}, {self.pick(pool, 'out')}) : ({self.type}, {self.type}) -> ()")

    def region(self, pool: dict[str, list[str]], depth: int) -> None:
        """The inside of a region and, on tensors, the yield of what it has last computed."""
        inside = self.inner(pool)
        self.indent += 1
        self.statements(inside, depth - 1, 2)
        if self.on_tensors:
            self.line(f"scf.yield {inside['data'][-1]} : {self.type}")
        else:
            self.line("scf.yield")
        self.indent -= 1

    def note(self, pool: dict[str, list[str]], head: str) -> None:
        if self.on_tensors:
            pool["data"].append(head.split(" ")[0])

    def branch(self, pool: dict[str, list[str]], depth: int) -> None:
        flag = self.pick(pool, "flag")
        head = f"{self.fresh()} = scf.if {flag} -> ({self.type})" if self.on_tensors else f"scf.if {flag}"
        self.line(head + " {")
        self.region(pool, depth)
        if self.on_tensors or self.random.random() < 0.5:
            self.line("} else {")
            self.region(pool, depth)
        self.line("}")
        self.note(pool, head)

    def loop(self, pool: dict[str, list[str]], depth: int) -> None:
        counter = self.fresh("i")
        low, high = (self.pick(pool, "constant") for _ in range(2))
        if self.random.random() < 0.3:
            high = self.pick(pool, "index")
        inside = self.inner(pool)
        inside["index"].append(counter)
        head = f"scf.for {counter} = {low} to {high} step %c1"
        if self.on_tensors:
            carried = self.fresh("k")
            head = f"{self.fresh()} = {head} iter_args({carried} = {self.pick(pool, 'data')}) -> ({self.type})"
            inside["data"].append(carried)
        self.line(head + " {")
        self.region(inside, depth)
        self.line("}")
        self.note(pool, head)

    def whilst(self, pool: dict[str, list[str]], depth: int) -> None:
        if self.on_tensors:
            result, before, after = self.fresh(), self.fresh("k"), self.fresh("k")
            start = self.pick(pool, "data")
            self.line(f"{result} = scf.while ({before} = {start}) : ({self.type}) -> {self.type} {{")
            self.line(f"  scf.condition(%false) {before} : {self.type}")
            self.line("} do {")
            self.line(f"^bb0({after}: {self.type}):")
            inside = self.inner(pool)
            inside["data"].append(after)
            self.region(inside, depth)
            self.line("}")
            pool["data"].append(result)
            return
        result, before, after, more = self.fresh(), self.fresh("k"), self.fresh("k"), self.fresh("p")
        self.line(f"{result} = scf.while ({before} = %c0) : (index) -> index {{")
        self.line(f"  {more} = arith.cmpi slt, {before}, %c2 : index")
        self.line(f"  scf.condition({more}) {before} : index")
        self.line("} do {")
        self.line(f"^bb0({after}: index):")
        inside = self.inner(pool)
        inside["index"].append(after)
        self.indent += 1
        self.statements(inside, depth - 1, 2)
        self.line("scf.yield %c2 : index")
        self.indent -= 1
        self.line("}")

    def switch(self, pool: dict[str, list[str]], depth: int) -> None:
        head = f"scf.index_switch {self.pick(pool, 'index')}"
        if self.on_tensors:
            head = f"{self.fresh()} = {head} -> {self.type}"
        self.line(head)
        for case in range(self.random.randint(1, 2)):
            self.line(f"case {case} {{")
            self.region(pool, depth)
            self.line("}")
        self.line("default {")
        self.region(pool, depth)
        self.line("}")
        self.note(pool, head)

    def execute_region(self, pool: dict[str, list[str]], depth: int) -> None:
        head = "scf.execute_region"
        if self.on_tensors:
            head = f"{self.fresh()} = {head} -> ({self.type})"
        self.line(head + " {")
        if self.random.random() < 0.5:
            self.line(f"  cf.br ^more{self.count}")
            self.line(f"^more{self.count}:")
        self.region(pool, depth)
        self.line("}")
        self.note(pool, head)

    # blocks

    def blocks(self, pool: dict[str, list[str]], depth: int) -> None:
        """The rest of a function that goes one of two ways."""
        flag = self.pick(pool, "flag")
        names = [f"^bb{self.fresh('')[1:]}" for _ in range(3)]
        self.line(f"cf.cond_br {flag}, {names[0]}, {names[1]}")
        for name in names[:2]:
            self.lines.append(f"{name}:")
            inside = self.inner(pool)
            self.statements(inside, depth)
            self.line(
                f"cf.br {names[2]}({inside['data'][-1]} : {self.type})" if self.on_tensors else f"cf.br {names[2]}"
            )
        joined = self.fresh("k")
        self.lines.append(f"{names[2]}({joined}: {self.type}):" if self.on_tensors else f"{names[2]}:")
        if self.on_tensors:
            pool["data"].append(joined)
        self.statements(pool, depth)


def _function(random: Random, level: str, name: str, helpers: list[str], scalars: bool, blocks: bool) -> str:
    depth = random.randint(0, 2)
    writer = _Function(random, level, helpers)
    data = writer.type
    arguments = [f"%x: {data}"] if writer.on_tensors else [f"%x: {data}", f"%y: {data}"]
    pool = {"data": ["%x"], "out": ["%y"], "index": [], "constant": ["%c0", "%c1", "%c2"], "flag": ["%true", "%false"]}
    pool["index"] += pool["constant"]
    if scalars:
        for name_, type in (("flag", "i1"), ("index", "index")):
            if random.random() < 0.6:
                arguments.append(f"%{name_}: {type}")
                pool[name_].append(f"%{name_}")
    for number in range(3):
        writer.line(f"%c{number} = arith.constant {number} : index")
    for word in ("true", "false"):
        writer.line(f"%{word} = arith.constant {word}")
    writer.statements(pool, depth)
    if blocks:
        writer.blocks(pool, depth)
    if level == "accel":
        writer.line("accel.barrier")
    results = f" -> {data}" if writer.on_tensors else ""
    on_machine = level in ("loop", "accel") and name != "main" and random.random() < 0.6
    attributes = " attributes {device = @small}" if on_machine else ""
    writer.line(f"func.return {pool['data'][-1]} : {data}" if writer.on_tensors else "func.return")
    return "\n".join([f"func.func @{name}({', '.join(arguments)}){results}{attributes} {{", *writer.lines, "}", ""])


def program(level: str, seed: int) -> str:
    """A module of one to three functions at `level`."""
    random = Random(f"{level} {seed}")
    text = TARGET if level in ("loop", "accel") or random.random() < 0.5 else ""
    helpers: list[str] = []
    for number in range(random.randint(0, 2)):
        text += _function(random, level, f"f{number}", list(helpers), False, random.random() < 0.3)
        helpers.append(f"f{number}")
    return text + _function(random, level, "main", helpers, True, random.random() < 0.4)
