# SPDX-License-Identifier: Apache-2.0
"""
Programs between two passes, as they are kept in a cache that the runs of all sweeps share.

A state is text, the weights beside it, and what the simulator has noted of its kernels. It is called by a digest of its
contents, so what different passes make alike is kept, and continued, once. A step, which makes a state or the figures
of a run, is called by a digest of the state that it starts from and of what it does, and so is found again.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.files import temporary_folder, write_whole
from penstock.dialects.remembered import Remembered
from penstock.dialects.verifier import Verifier
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import located_text
from penstock.passes.code_cache import DIGITS, add, find, open_cache, prune
from penstock.runtime.simulator.workloads import Workload, Workloads
from penstock.tools.sweep.digests import digest_of

PART = "sweeps"
"""The folder in the cache."""
MAX_BYTES = 4 << 30
"""Of all states and weights together; those whose last use is longest ago go first."""
_RECENT = 8
"""Programs that a process keeps in memory, too: about as many as a run has steps, for branches begin at all of them."""
_ADDED_BETWEEN = 64
"""Entries that a process adds before it prunes."""

_TEXT = "state"
"""The file name of the text of a state, which places in it have: it says nothing to anybody."""


@dataclass(frozen=True)
class State:
    """A program between two passes."""

    text: str
    weights: Mapping[str, str]
    """The digests of the contents of the weights, by their names."""
    workloads: Mapping[str, Workload]

    @property
    def digest(self) -> str:
        return digest_of([self.text, sorted(self.weights.items()), sorted(self.workloads.items())])


@dataclass(eq=False)
class Program:
    """A program that is being lowered."""

    module: ModuleOp
    ctx: PenstockContext
    workloads: Workloads = field(default_factory=Workloads)
    digests: dict[str, str] = field(default_factory=dict[str, str])
    """Those of its weights that are known: they never change, but for those that are added."""
    verifier: Verifier = field(default_factory=Verifier)
    """What has verified it, and all that it was copied from."""

    def copy(self) -> Program:
        """Another one like it, to be lowered; the data of weights are shared."""
        ctx = make_context()
        ctx.weights, ctx.remembered = self.ctx.weights.copy(), self.ctx.remembered
        workloads = Workloads(dict(self.workloads.found))
        return Program(self.module.clone(), ctx, workloads, dict(self.digests), self.verifier)


class StateCache:
    """The states and steps in the folder of the cache. Any number of processes may share it."""

    def __init__(self) -> None:
        self.folder = open_cache(PART, "sweeps")
        self._added = 0
        self._recent: OrderedDict[str, Program] = OrderedDict()
        self.remembered = Remembered()
        """What passes of this process have made of kernels."""

    # steps

    def step(self, key: str) -> Any | None:
        """What was kept of a step."""
        return self._read("step", key)

    def keep_step(self, key: str, value: object) -> None:
        self._write("step", key, value)

    # states

    def keep(self, program: Program) -> str:
        """Keep what a program is now, which is not lowered any further; returns its digest."""
        weights = program.ctx.weights
        for name in weights:
            if name not in program.digests:
                program.digests[name] = _array_digest(weights[name])
        state = State(located_text(program.ctx, program.module), dict(program.digests), dict(program.workloads.found))
        if find(self.folder, "state", digest := state.digest, ".state") is None:
            if state.weights and find(self.folder, "weights", key := _weights_key(state), ".safetensors") is None:
                with temporary_folder(self.folder) as workplace:
                    weights.save(workplace / "weights")
                    self._add("weights", key, workplace / "weights")
            self._write("state", digest, state)
        self._remember(digest, program)
        return digest

    def load(self, digest: str) -> Program | None:
        """The program of a state, to be lowered; None if it is not kept any more."""
        if (recent := self._recent.get(digest)) is not None:
            self._recent.move_to_end(digest)
            return recent.copy()
        state = self._read("state", digest)
        if not isinstance(state, State):
            return None
        ctx = make_context()
        ctx.remembered = self.remembered
        if state.weights:
            path = find(self.folder, "weights", _weights_key(state), ".safetensors")
            if path is None:
                return None
            ctx.weights = WeightStore.open(path)
        module = parse_text(ctx, SourceText(_TEXT, state.text), positions=False).module
        program = Program(module, ctx, Workloads(dict(state.workloads)), dict(state.weights))
        self._remember(digest, program)
        return program.copy()

    def _remember(self, digest: str, program: Program) -> None:
        self._recent[digest] = program
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def prune(self) -> None:
        """Remove what is old or too much."""
        prune(self.folder, MAX_BYTES)

    def _read(self, kind: str, key: str) -> Any | None:
        path = find(self.folder, kind, key, f".{kind}")
        if path is None:
            return None
        try:
            # Nobody but the user can have written it, and its checksum is right.
            return pickle.loads(path.read_bytes())
        except OSError:
            return None

    def _write(self, kind: str, key: str, value: object) -> None:
        with temporary_folder(self.folder) as workplace:
            write_whole(workplace / kind, pickle.dumps(value, protocol=5))
            self._add(kind, key, workplace / kind)

    def _add(self, kind: str, key: str, file: Path) -> None:
        suffix = ".safetensors" if kind == "weights" else f".{kind}"
        add(self.folder, kind, key, file, suffix, pruning=False)
        self._added += 1
        if self._added % _ADDED_BETWEEN == 0:
            self.prune()


def _weights_key(state: State) -> str:
    return digest_of(sorted(state.weights.items()))


def _array_digest(array: Array) -> str:
    found = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:DIGITS]
