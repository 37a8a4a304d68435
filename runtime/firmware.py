# SPDX-License-Identifier: Apache-2.0
"""
Firmware: a program for a machine without an operating system, that is placed in the memories which the machine has.

The folder is that of `runtime.device`, with a script for the linker made of the `machine.memory` parts.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects.arith import MulfOp, MuliOp
from xdsl.dialects.builtin import ModuleOp, f64, i64
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.alignment import ALIGNMENT
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import MemoryOp, TargetOp, find_target
from penstock.dialects.machine.parts import CODE, DATA, WEIGHTS
from penstock.lowering.to_c import GENERATED, CSource
from penstock.lowering.to_c.folder import weight_offsets

SCRIPT = "link.ld"
"""The name of the script for the linker."""
STACK = 2048
"""Bytes that are left for the stack at least, unless the linker is given `__stack_size`."""


def require_memories(module: ModuleOp) -> TargetOp:
    """The machine of a module, whose file says which memories there are; raises UserError if it does not."""
    target = find_target(module)
    if target is None or not target.memories():
        who = "the program has no machine" if target is None else f'machine "{target.machine_name}" has no memories'
        notes = ["a machine file says in [[memory]] where code, weights and data lie, such as flash and SRAM"]
        raise UserError(f"{who} to place firmware in", notes=notes, status=UNSUPPORTED)
    return target


def require_narrow_products(module: ModuleOp) -> None:
    """Raise UserError for sums of products of 64 bits, which a microcontroller has to compute by calls."""
    for op in module.walk():
        if not isinstance(op, GenericOp) or not any(kind.data is IteratorType.REDUCTION for kind in op.iterator_types):
            continue
        for each in op.body.walk():
            if isinstance(each, MuliOp | MulfOp) and each.result.type in (i64, f64):
                message = f"multiply-accumulates of {each.result.type} are not for firmware"
                notes = ["quantize it: penstock quantize, or let it have f32 or integers of up to 32 bits"]
                raise UserError(message, loc=location_of(op), notes=notes, status=UNSUPPORTED)


def memory_of(target: TargetOp, what: str) -> MemoryOp:
    """The memory that holds `what`, one of `PLACED`; the verifier has seen that there is one."""
    return next(each for each in target.memories() if any(what == held.data for held in each.holds))


def require_fit(target: TargetOp, source: CSource) -> None:
    """
    Raise UserError, at the memory in the machine file, where weights or data are known not to fit.

    What code and stack need is known when it is linked, which fails, too, where they do not fit.
    """
    outputs = sum(-(-prod(each.shape) * each.dtype.itemsize // ALIGNMENT) * ALIGNMENT for each in source.outputs)
    scopes = sum(source.scope_bytes.values())
    data = source.arena_bytes + source.scratch_bytes + scopes + outputs
    needs = {WEIGHTS: weight_offsets(source)[-1] if source.weights else 0, DATA: data}
    for memory in target.memories():
        held = [each.data for each in memory.holds]
        needed = sum(needs.get(each, 0) for each in held)
        if needed > memory.bytes:
            parts = ", ".join(f"{each} {needs[each]:,}" for each in held if each in needs)
            notes = [f"the least size that may do is {needed:,}, besides code and stack"]
            message = f"{memory.title} of {memory.bytes:,} bytes does not hold {parts} bytes"
            if memory is memory_of(target, DATA):
                notes.append(f"arena {source.arena_bytes:,}, repacked operands {source.scratch_bytes:,}")
            raise UserError(message, loc=location_of(memory), notes=notes)


def linker_script(target: TargetOp) -> str:
    """The script for the linker: the memories of a machine, and in which of them each section lies."""
    lines = [
        f"  {each.sym_name.data} : ORIGIN = {each.begin:#010x}, LENGTH = {each.bytes}\n" for each in target.memories()
    ]
    names = {what: memory_of(target, what).sym_name.data for what in (CODE, WEIGHTS, DATA)}
    return _SCRIPT.format(generated=GENERATED, stack=STACK, memories="".join(lines), **names)


_SCRIPT = """\
{generated}
MEMORY
{{
{memories}}}

SECTIONS
{{
  .text : {{ KEEP(*(.vectors)) *(.text*) *(.rodata .rodata.*) . = ALIGN(4); }} > {code}
  .ARM.exidx : {{ *(.ARM.exidx*) }} > {code}
  .data : {{ __data_start = .; *(.data*) . = ALIGN(4); __data_end = .; }} > {data} AT > {code}
  __data_load = LOADADDR(.data);
  .weights : {{ *(.weights) }} > {weights}
  .bss (NOLOAD) : {{ __bss_start__ = .; *(.bss*) *(COMMON) . = ALIGN(8); __bss_end__ = .; end = .; }} > {data}
  __stack_top = ORIGIN({data}) + LENGTH({data});
  ASSERT(__bss_end__ + (DEFINED(__stack_size) ? __stack_size : {stack}) <= __stack_top, "the stack would overlap data")
}}
"""
