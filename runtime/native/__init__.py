"""Generated C as machine code: found compiler, cached build, loaded library."""

from __future__ import annotations

from penstock.passes.toolchain.cache import cache_directory
from penstock.passes.toolchain.compiler import Compiler, find_compiler
from penstock.passes.toolchain.library import CompilerFault
from penstock.runtime.native.module import NativeContext, NativeCounters, NativeModule, build, load_native

__all__ = [
    "Compiler",
    "CompilerFault",
    "NativeContext",
    "NativeCounters",
    "NativeModule",
    "build",
    "cache_directory",
    "find_compiler",
    "load_native",
]
