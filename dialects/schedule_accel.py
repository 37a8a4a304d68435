"""Ops of the `schedule` dialect on buffers in scopes, and on the commands of units that run beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, SSAValue
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
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream.transform import ANY_OP


@irdl_op_definition
class MultiBufferOp(IRDLOperation):
    """
    Let a buffer that each iteration fills anew be a ring of `slots` buffers, before the loops around it.

    The slots take turns over all iterations of the nest, so that a transfer of the next iteration does not write where
    this one still reads. With commands, the ring gets a place in its scope, and the order is derived anew, which
    replaces the loops. Consumes the handle, and returns that of the ring.
    """

    name = "schedule.multi_buffer"
    target = operand_def(ANY_OP)
    """The buffer."""
    slots = prop_def(IntegerAttr.constr(i64))
    ring = result_def(ANY_OP)
    assembly_format = "$target `slots` $slots attr-dict"

    def __init__(self, target: SSAValue, slots: int):
        super().__init__(operands=[target], properties={"slots": IntegerAttr(slots, i64)}, result_types=[ANY_OP])

    def verify_(self) -> None:
        if self.slots.value.data < 2:
            raise VerifyException(f"a ring has at least two slots, not {self.slots.value.data}")


@irdl_op_definition
class PipelineOp(IRDLOperation):
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
    slots = prop_def(DenseArrayBase.constr(i64))
    wanted = opt_prop_def(DenseArrayBase.constr(i64))
    where_possible = opt_prop_def(UnitAttr)
    fixed_offsets = opt_prop_def(UnitAttr)
    remark = opt_prop_def(StringAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        target: SSAValue,
        slots: Sequence[tuple[SSAValue, int]] = (),
        skewed: Sequence[SSAValue] = (),
        *,
        wanted: Sequence[int] | None = None,
        where_possible: bool = False,
        fixed_offsets: bool = False,
        remark: str = "",
    ):
        counts = [count for _, count in slots]
        properties: dict[str, Attribute | None] = {
            "slots": DenseArrayBase.from_list(i64, counts),
            "wanted": DenseArrayBase.from_list(i64, wanted) if wanted and list(wanted) != counts else None,
            "where_possible": UnitAttr() if where_possible else None,
            "fixed_offsets": UnitAttr() if fixed_offsets else None,
            "remark": StringAttr(remark) if remark else None,
        }
        super().__init__(operands=[target, [buffer for buffer, _ in slots], skewed], properties=properties)

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

    @classmethod
    def parse(cls, parser: Parser) -> PipelineOp:
        def handle() -> SSAValue:
            return parser.resolve_operand(parser.parse_unresolved_operand(), ANY_OP)

        def slots_of_buffer() -> tuple[SSAValue, int]:
            buffer = handle()
            parser.parse_punctuation("=")
            return buffer, parser.parse_integer()

        target = handle()
        slots: list[tuple[SSAValue, int]] = []
        if parser.parse_optional_keyword("slots") is not None:
            slots = parser.parse_comma_separated_list(parser.Delimiter.PAREN, slots_of_buffer)
        skewed: list[SSAValue] = []
        if parser.parse_optional_keyword("skewing") is not None:
            skewed = parser.parse_comma_separated_list(parser.Delimiter.PAREN, handle)
        rest = parser.parse_optional_attr_dict()
        op = cls(target, slots, skewed)
        op.properties |= {name: rest.pop(name) for name in _PIPELINE_OPTIONS if name in rest}
        op.attributes |= rest
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.target)
        if self.buffers:
            printer.print_string(" slots(")
            for number, (buffer, count) in enumerate(zip(self.buffers, self.slot_counts, strict=True)):
                printer.print_string(", " * (number > 0))
                printer.print_operand(buffer)
                printer.print_string(f" = {count}")
            printer.print_string(")")
        if self.skewed:
            printer.print_string(" skewing(")
            printer.print_list(self.skewed, printer.print_operand)
            printer.print_string(")")
        options = {name: self.properties[name] for name in _PIPELINE_OPTIONS if name in self.properties}
        printer.print_op_attributes(options | self.attributes)


_PIPELINE_OPTIONS = ("wanted", "where_possible", "fixed_offsets", "remark")


@irdl_op_definition
class VirtualThreadOp(IRDLOperation):
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
    threads = prop_def(IntegerAttr.constr(i64))
    assembly_format = "$loop `threads` $threads attr-dict"

    def __init__(self, loop: SSAValue, threads: int):
        super().__init__(operands=[loop], properties={"threads": IntegerAttr(threads, i64)})

    def verify_(self) -> None:
        if self.threads.value.data < 2:
            raise VerifyException(f"there are at least two virtual threads, not {self.threads.value.data}")


OPS = (MultiBufferOp, PipelineOp, VirtualThreadOp)
