# SPDX-License-Identifier: Apache-2.0
"""
LLVM IR as machine code of this process, by llvmlite: for the CPU that code is made for, see `dialects.cpu`, without a C
compiler, a linker, or files.

llvmlite is the extra `llvm`; it is imported when the first program is compiled.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

from penstock.dialects.cpu import Cpu, chosen_cpu
from penstock.dialects.diagnostics import UserError, pip_install
from penstock.runtime.native import NativeModule

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from penstock.lowering.to_llvm import LlvmSource

WHEEL = "llvmlite"
F16_FUNCTIONS = "libgcc_s.so.1"
"""The library with what LLVM calls where a CPU of x86 has no instructions for conversions of f16."""
INSTALL = pip_install("llvm")


def has_llvm() -> bool:
    """Whether llvmlite is installed; it is not imported."""
    return find_spec(WHEEL) is not None


class JitLibrary:
    """Functions in memory, which stay there as long as this lives."""

    def __init__(self, tracker: Any, compiler: Any, names: tuple[str, ...]):
        self._tracker = tracker
        self._compiler = compiler
        self._names = names

    def __del__(self) -> None:
        # Before the compiler, which may have no other user any more.
        self._tracker.close()

    def __getitem__(self, name: str) -> Any:
        return ctypes.CFUNCTYPE(None)(self._tracker[name])

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(name)
        return self[name]


class Jit:
    """LLVM for a CPU; raises UserError without llvmlite."""

    def __init__(self, cpu: Cpu) -> None:
        try:
            llvm: Any = import_module(f"{WHEEL}.binding")
        except ImportError as error:
            raise UserError(f"the backend llvm needs llvmlite: {error}", notes=[INSTALL]) from None
        self._llvm = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        if "f16c" not in cpu.features:
            # Without it, or in one before GCC 12, programs that need them are refused.
            with suppress(RuntimeError):
                llvm.load_library_permanently(F16_FUNCTIONS)
        name, features = cpu.llvm or (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
        self.version = ".".join(map(str, llvm.llvm_version_info))
        target = llvm.Target.from_default_triple()
        self._machine: Any = target.create_target_machine(
            cpu=name, features=features, opt=3, reloc="pic", codemodel="small"
        )
        self._jit: Any = llvm.create_lljit_compiler(self._machine)
        self._numbers = count()
        self._lock = Lock()

    def optimised(self, text: str) -> Any:
        """The module of a text, verified and optimised; floats keep the arithmetic of the text."""
        llvm = self._llvm
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = True
        options.loop_interleaving = options.loop_unrolling = True
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return module

    def assembly(self, text: str) -> str:
        """What a text becomes on the CPU."""
        with self._lock:
            return str(self._machine.emit_assembly(self.optimised(text)))

    def link(self, text: str, names: tuple[str, ...]) -> JitLibrary:
        """The functions `names` of a text, in memory."""
        with self._lock:
            code = self._machine.emit_object(self.optimised(text))
            builder = self._llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
            for name in names:
                builder.export_symbol(name)
            return JitLibrary(builder.link(self._jit, f"penstock{next(self._numbers)}"), self._jit, names)


jit = cache(Jit)
"""LLVM for a CPU, once for each."""


def load_source(source: LlvmSource) -> NativeModule:
    """
    Compile and load a program.

    Raises UserError without llvmlite, and where the CPU lacks what LLVM calls a function for that is not there, such as
    conversions of f16.
    """
    cpu = chosen_cpu()
    try:
        return NativeModule(source, jit(cpu).link(source.text, source.symbols))
    except RuntimeError as error:
        notes = ["the backend native, which is C, has functions of its own for what a CPU lacks"]
        raise UserError(f"LLVM does not compile the program for {cpu.title}: {error}", notes=notes) from None


def load_llvm(module: ModuleOp) -> NativeModule:
    """Compile and load a module at loop or accel level; raises UserError as `emit_llvm` and `load_source` do."""
    from penstock.lowering.to_llvm import emit_llvm

    return load_source(emit_llvm(module))
