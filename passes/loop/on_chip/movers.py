# SPDX-License-Identifier: Apache-2.0
"""The kernel that fills a border of what stays on chip."""

from __future__ import annotations

from xdsl.dialects import arith, func
from xdsl.ir import Block

from penstock.dialects.machine import TargetOp
from penstock.passes.generics import structured
from penstock.passes.loop.on_chip.places import Border, OnChipLayout
from penstock.passes.loop.on_chip.program import machine_kernel
from penstock.passes.loop.tensorize import prove
from penstock.passes.shapes import loops


def border_filler(name: str, place: OnChipLayout, border: Border, target: TargetOp) -> func.FuncOp:
    """A kernel that fills a buffer with padding, of which its border stays."""
    block = Block(arg_types=[place.type])
    block.args[0].name_hint = "dest"
    output = block.args[0], loops(place.type.get_num_dims())
    generic = structured([], output, lambda body, _: body.emit(arith.ConstantOp(border.value)))
    block.add_ops([generic, func.ReturnOp()])
    kernel = machine_kernel(name, block, target)
    generic.library_call = prove(generic, target).intrinsic.sym_name
    return kernel
