# SPDX-License-Identifier: Apache-2.0
"""
Builds the body of a kernel at the tensor level, whatever it is made of: `tensor.empty`, `tensor.pad`, slices, reshapes,
`linalg.generic`, and loops of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.builder import Builder
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import UNKNOWN_LOC, DenseArrayBase, IndexType, LocationAttr, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from penstock.dialects.upstream.tensor import EmptyOp
from penstock.passes.analysis.kernels import rounds_each_step
from penstock.passes.generics import structured
from penstock.passes.index_builder import Index, materialize
from penstock.passes.scalar_body import Compute, constant_attribute
from penstock.passes.schedule.tile_nest import DimRange, insert_slice, slice_of
from penstock.passes.shapes import Dims, element_of, loops, shape_of, tensor_type
from penstock.passes.tensor.reshape import emit_reshape


class TensorBuilder:
    """A kernel under construction: ops are appended to `block`, at `location`, their results called `name`."""

    def __init__(self, block: Block | None = None) -> None:
        self.block = Block() if block is None else block
        self.names: dict[SSAValue, str] = {}
        """What the text shall call values."""
        self.name: str | None = None
        """What the results of ops are called that `emit` appends; None for no name."""
        self.location: LocationAttr = UNKNOWN_LOC

    def emit(self, op: Operation) -> SSAValue:
        """Append `op`, which has one result."""
        op.location = self.location
        self.block.add_op(op)
        if self.name is not None and not isinstance(op, arith.ConstantOp):
            self.names[op.results[0]] = self.name
        return op.results[0]

    def builder(self) -> Builder:
        """A builder that appends ops without a name, at `location`."""
        return Builder(InsertPoint.at_end(self.block), operation_insertion_handler=[self._locate])

    def _locate(self, op: Operation) -> None:
        op.location = self.location

    def loop(
        self,
        extent: int,
        step: int,
        initial: Sequence[SSAValue],
        body: Callable[[Index, Sequence[SSAValue]], Sequence[SSAValue]],
        *,
        start: int = 0,
        always: bool = False,
    ) -> list[SSAValue]:
        """
        `body` at each iteration of a loop from `start` on, on the values carried; at its end it is shifted inwards
        where `step` does not divide `extent`.

        One iteration needs no loop, but with `always` it has one, which says that the kernel is tiled as it is.
        """
        if 0 < extent <= step and not always:
            return list(body(start, initial))
        bounds = [materialize(self.builder(), bound) for bound in (start, start + extent, step)]
        block = Block(arg_types=[IndexType(), *(value.type for value in initial)])
        outer, self.block = self.block, block
        at: Index = block.args[0]
        if extent % step:
            last = materialize(self.builder(), start + extent - step)
            at = self.builder().insert(arith.MinSIOp(block.args[0], last)).result
        block.add_op(scf.YieldOp(*body(at, block.args[1:])))
        self.block = outer
        loop = scf.ForOp(bounds[0], bounds[1], bounds[2], initial, Region(block))
        loop.location = self.location
        self.block.add_op(loop)
        return list(loop.results)

    def empty(self, shape: Sequence[int], element: Attribute, *, name: str | None = None) -> SSAValue:
        """A fresh destination, or the shape of a window."""
        made = self.emit(EmptyOp((), tensor_type(tuple(shape), element)))
        if name is not None:
            self.names[made] = name
        return made

    def fill(self, shape: Sequence[int], element: Attribute, number: float, *, name: str | None = None) -> SSAValue:
        """A tensor of one number: a generic without inputs."""
        output = self.empty(shape, element, name=name), loops(len(shape))
        made = self.generic([], output, 0, lambda body, elements: body.constant(number, element))
        if name is not None:
            self.names[made] = name
        return made

    def pad(self, value: SSAValue, low: Sequence[int], high: Sequence[int], number: float) -> SSAValue:
        """`value` with `number` around it; nothing is emitted where all widths are zero."""
        if not any((*low, *high)):
            return value
        sizes = zip(low, shape_of(value), high, strict=True)
        shape = tuple(before + size + after for before, size, after in sizes)
        element = element_of(value)
        constant = self.emit(arith.ConstantOp(constant_attribute(number, element)))
        block = Block([tensor.YieldOp(constant)], arg_types=[IndexType()] * len(shape))
        padded = self.emit(
            tensor.PadOp(
                value,
                (),
                (),
                Region(block),
                DenseArrayBase.from_list(i64, list(low)),
                DenseArrayBase.from_list(i64, list(high)),
                tensor_type(shape, element),
            )
        )
        self.names[padded] = f"{self.names.get(value, 'x')}_padded"
        return padded

    def pad_spatial(
        self, value: SSAValue, first: int, low: Sequence[int], high: Sequence[int], number: float
    ) -> SSAValue:
        """`pad` of as many dims as there are widths, from dim `first` on."""
        before, after = [0] * first, [0] * (len(shape_of(value)) - first - len(low))
        return self.pad(value, [*before, *low, *after], [*before, *high, *after], number)

    def generic(
        self,
        inputs: Sequence[tuple[SSAValue, Dims]],
        output: tuple[SSAValue, Dims],
        reductions: int,
        compute: Compute,
        *,
        unsigned: bool = False,
    ) -> SSAValue:
        """
        A `linalg.generic` whose parallel loops index `output`, each one dim of it, followed by `reductions` reduction
        loops; dims of one element may be indexed by 0.

        `compute(body, elements)` gives the element to yield; the last of the elements is that of the output.

        Raises ValueError for a reduction that is rounded at every step.
        """
        made = structured(inputs, output, compute, self.location, reductions=reductions, unsigned=unsigned)
        if rounds_each_step(made):
            raise ValueError(f"a reduction carries {element_of(output[0])}: `accumulation.accumulate` chooses its type")
        return self.emit(made)

    def map(self, compute: Compute, *values: SSAValue, element: Attribute | None = None) -> SSAValue:
        """What `compute` makes of the elements of tensors of one shape, in the type of the first or in `element`."""
        shape = shape_of(values[0])
        along = loops(len(shape))
        output = self.empty(shape, element or element_of(values[0]))
        return self.generic([(value, along) for value in values], (output, along), 0, compute)

    def slice(self, value: SSAValue, spans: Sequence[DimRange]) -> SSAValue:
        """`value` at `spans`; itself if that is all of it."""
        return slice_of(self.builder(), value, spans)

    def insert(self, source: SSAValue, dest: SSAValue, spans: Sequence[DimRange]) -> SSAValue:
        """`dest` with `source` at `spans`; the source itself if that is all of it."""
        return insert_slice(self.builder(), source, dest, spans)

    def reshape(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The same elements in another shape; itself if it has it."""
        return emit_reshape(self.emit, value, shape)
