# SPDX-License-Identifier: Apache-2.0
"""Ops of the `schedule` dialect on buffers in scopes, and on the commands of units that run beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, StringAttr, UnitAttr, i32, i64
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream.handle_ops import ANY_OP, I64, I64_ARRAY, HandleOp


@irdl_op_definition
class MultiBufferOp(HandleOp):
    """
    Let a buffer that each iteration fills anew be a ring of `slots` buffers, before the loops around it.

    The slots take turns over all iterations of the nest, so that a transfer of the next iteration does not write where
    this one still reads. With commands, the ring gets a place in its scope, and the order is derived anew, which
    replaces the loops. Consumes the handle, and returns that of the ring.

    ```mlir
    %ring = schedule.multi_buffer %buffer slots 2
    ```
    """

    name = "schedule.multi_buffer"
    target = operand_def(ANY_OP)
    """The buffer."""
    slots = prop_def(I64)
    ring = result_def(ANY_OP)
    assembly_format = "$target `slots` $slots attr-dict"

    def verify_(self) -> None:
        if self.slots.value.data < 2:
            raise VerifyException(f"a ring has at least two slots, not {self.slots.value.data}")


@irdl_custom_directive
class SlotsOfBuffers(CustomDirective):
    """How many slots each buffer has: `%a = 2, %b = 3`."""

    buffers: VariadicOperandVariable
    slots: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        buffers: list[UnresolvedOperand] = []
        slots: list[int] = []

        def parse_one() -> None:
            buffers.append(parser.parse_unresolved_operand())
            parser.parse_punctuation("=")
            slots.append(parser.parse_integer())

        parser.parse_comma_separated_list(parser.Delimiter.NONE, parse_one)
        self.buffers.set(state, buffers)
        self.slots.set(state, DenseArrayBase.from_list(i64, slots))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        assert isinstance(op, PipelineOp)
        for number, (buffer, count) in enumerate(zip(op.buffers, op.slot_counts, strict=True)):
            printer.print_string(", " * (number > 0))
            printer.print_operand(buffer)
            printer.print_string(f" = {count}")
        state.last_was_punctuation = False
        state.should_emit_space = True

    def set_empty(self, state: ParsingState) -> None:
        self.buffers.set(state, ())
        self.slots.set(state, DenseArrayBase.from_list(i64, []))

    def is_present(self, op: IRDLOperation) -> bool:
        return self.buffers.is_present(op)

    def is_anchorable(self) -> bool:
        return True


@irdl_op_definition
class PipelineOp(HandleOp):
    """
    Let the iterations of a kernel's commands overlap: so many `slots` for buffers, and skewed loops.

    A buffer with several slots becomes a ring, as by `schedule.multi_buffer`. A loop is skewed where one unit loads for
    an iteration and stores its results: the loads of the next iteration go before the store. All buffers of the kernel
    get places for that, unless there are `fixed_offsets`, and its commands a new order. With `where_possible` the loops
    that cannot be skewed stay as they are, and are left out of the op when it has been applied. `wanted` is how many
    slots each buffer was to have if the scopes were larger; `remark` is for people.

    Consumes the handles of buffers, and of all loops.

    ```mlir
    schedule.pipeline %kernel slots(%a = 2, %b = 3) skewing(%i) {remark = "modelled 1,685 cycles"}
    ```
    """

    name = "schedule.pipeline"
    target = operand_def(ANY_OP)
    """The kernel."""
    buffers = var_operand_def(ANY_OP)
    skewed = var_operand_def(ANY_OP)
    slots = prop_def(I64_ARRAY)
    wanted = opt_prop_def(I64_ARRAY)
    where_possible = opt_prop_def(UnitAttr)
    fixed_offsets = opt_prop_def(UnitAttr)
    remark = opt_prop_def(StringAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$target (`slots` `(` custom<SlotsOfBuffers>($buffers, $slots)^ `)`)? (`skewing` `(` $skewed^ `)`)? attr-dict"
    )
    custom_directives = (SlotsOfBuffers,)

    @property
    def slot_counts(self) -> tuple[int, ...]:
        """The slots of each buffer."""
        return self.slots.get_values()

    @property
    def wanted_slots(self) -> tuple[int, ...]:
        """The slots that each buffer was to have."""
        return self.wanted.get_values() if self.wanted is not None else self.slot_counts

    def keep_skewed(self, numbers: Sequence[int]) -> None:
        """Leave out all loops but some, which all can be skewed."""
        kept = [self.skewed[number] for number in numbers]
        self.operands = [self.target, *self.buffers, *kept]
        self.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [1, len(self.buffers), len(kept)])
        self.properties.pop("where_possible", None)

    def verify_(self) -> None:
        if not len(self.slot_counts) == len(self.buffers) == len(self.wanted_slots):
            raise VerifyException(f"slots are said for each of the {len(self.buffers)} buffers, one number each")
        if any(count < 1 for count in self.slot_counts):
            raise VerifyException("a buffer has at least one slot")


@irdl_op_definition
class VirtualThreadOp(HandleOp):
    """
    Interleave so many iterations of a loop on the units, each with buffers of its own.

    The loop is taken in strips of `threads` iterations, whose commands follow each other one by one; a loop inside it
    in which several units work is executed by all threads together. Consumes the handles of all loops.

    ```mlir
    schedule.virtual_thread %i threads 2
    ```
    """

    name = "schedule.virtual_thread"
    loop = operand_def(ANY_OP)
    threads = prop_def(I64)
    assembly_format = "$loop `threads` $threads attr-dict"

    def verify_(self) -> None:
        if self.threads.value.data < 2:
            raise VerifyException(f"there are at least two virtual threads, not {self.threads.value.data}")


OPS = (MultiBufferOp, PipelineOp, VirtualThreadOp)
