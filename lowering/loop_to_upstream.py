# SPDX-License-Identifier: Apache-2.0
"""
From the loop level to MLIR's own dialects, for MLIR's own tools: an outside witness of what a program computes.

`docs/interchange.md` has the commands that make machine code of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StringAttr,
    UnitAttr,
    i8,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.alignment import ALIGNMENT
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import (
    BufferOp,
    CopyOp,
    PrefetchOp,
    RingOp,
    ScopedAllocation,
    SlotOp,
    element_bytes,
    memref_of,
    span_in_bytes,
    static_strides,
)
from penstock.passes.generics import first_of, structured
from penstock.passes.index_builder import Index, add, for_loop, materialize, scale
from penstock.passes.shapes import loops

ARENA = "arena"
"""The name of the bytes off chip."""
_OURS = ("graph", "mem", "accel", "machine", "schedule")
_DEVICE = "device"


def _without_space(type: Attribute) -> Attribute:
    """A memref of this kind in the one memory that there is."""
    if not isa(type, MemRefType) or isinstance(type.memory_space, NoneAttr):
        return type
    return MemRefType(type.element_type, type.shape, type.layout)


@dataclass
class _Function:
    """The body of one function."""

    function: FuncOp
    arrays: dict[str, memref.GlobalOp]
    bytes: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    """The arrays that the function uses."""

    def run(self) -> None:
        """Rewrite every op of ours."""
        for op in list(self.function.body.walk()):
            match op:
                case BufferOp():
                    builder = Builder(InsertPoint.before(op))
                    self._replace(op, self._view(builder, op, op.planned_offset(), op.type))
                case SlotOp():
                    self._replace(op, self._slot(op))
                case CopyOp():
                    _copy(op)
                    Rewriter.erase_op(op)
                case memref.CopyOp():
                    whole = [0] * memref_of(op.source).get_num_dims()
                    _move(Builder(InsertPoint.before(op)), op, op.source, whole, op.destination, whole)
                    Rewriter.erase_op(op)
                case PrefetchOp():
                    Rewriter.erase_op(op)
                case _:
                    pass
        for op in list(self.function.body.walk()):
            if isinstance(op, RingOp) and op.ring.first_use is None:
                Rewriter.erase_op(op)

    def _replace(self, op: BufferOp | SlotOp, value: SSAValue) -> None:
        value.name_hint = op.memref.name_hint
        op.memref.replace_all_uses_with(value)
        Rewriter.erase_op(op)

    def _slot(self, op: SlotOp) -> SSAValue:
        ring = op.ring.owner
        if not isinstance(ring, RingOp):
            raise UserError(
                "the ring of this slot is not known here", loc=location_of(op), status=UNSUPPORTED,
                notes=["only a slot of a `mem.ring` is lowered"],
            )  # fmt: skip
        builder = Builder(InsertPoint.before(op))
        turn = builder.insert(arith.RemUIOp(op.index, materialize(builder, ring.slot_count))).result
        shift = add(builder, scale(builder, turn, ring.pitch_in_bytes), ring.planned_offset())
        return self._view(builder, ring, shift, ring.slot_type)

    def _view(
        self, builder: Builder, allocation: ScopedAllocation, shift: Index, type: MemRefType[Attribute]
    ) -> SSAValue:
        """The bytes from `shift` on of the scope of an allocation, as a memref of a type."""
        element, shape = type.element_type, type.get_shape()
        held = self._array(allocation.scope or ARENA)
        at = materialize(builder, shift)
        if isinstance(type.layout, NoneAttr):
            return builder.insert(memref.ViewOp(held, at, [], MemRefType(element, shape))).result
        flat = MemRefType(element, [span_in_bytes(type) // element_bytes(type)])
        bytes = builder.insert(memref.ViewOp(held, at, [], flat)).result
        placed = MemRefType(element, shape, type.layout)
        cast = memref.ReinterpretCastOp.from_dynamic(bytes, [0], list(shape), list(static_strides(type)), placed)
        return builder.insert(cast).result

    def _array(self, scope: str) -> SSAValue:
        if scope not in self.bytes:
            builder = Builder(InsertPoint.at_start(self.function.body.blocks[0]))
            array = self.arrays[scope]
            found = builder.insert(memref.GetGlobalOp(array.sym_name.data, array.type))
            self.bytes[scope] = found.memref
            found.memref.name_hint = scope
        return self.bytes[scope]


def _move(
    builder: Builder, like: Operation, source: SSAValue, source_at: Sequence[Index], dest: SSAValue,
    dest_at: Sequence[Index], box: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """Copy a box that lies inside both sides."""
    sides: list[SSAValue] = []
    for value, at in ((source, source_at), (dest, dest_at)):
        type = memref_of(value)
        sizes = list(type.get_shape() if box is None else box)
        if tuple(sizes) != type.get_shape():
            ones = [1] * len(sizes)
            window = memref.SubviewOp.infer_result_type(type, at, sizes, ones)
            value = builder.insert(memref.SubviewOp.get(value, at, sizes, ones, window)).result
        sides.append(value)
    dims = loops(memref_of(sides[0]).get_num_dims())
    builder.insert(structured([(sides[0], dims)], (sides[1], dims), first_of, like.location))


def _copy(op: CopyOp) -> None:
    """A copy: of the whole box at once where it is known to lie inside, else element by element."""
    builder = Builder(InsertPoint.before(op))
    source_at, dest_at, box = op.mixed_source_offsets(), op.mixed_dest_offsets(), op.box
    is_source = op.window_side == "source"
    at, whole = (source_at, op.source_type) if is_source else (dest_at, op.dest_type)
    lies_inside = op.window_lies_inside(at, whole.get_shape())
    # A window of the source that says nothing to read outside never leaves it.
    if lies_inside or (is_source and op.padding is None):
        _move(builder, op, op.source, source_at, op.dest, dest_at, box)
        return
    counters: list[SSAValue] = []
    for size in box:
        loop, builder = for_loop(builder, (0, size, 1), like=op)
        counters.append(loop.body.block.args[0])
        builder = Builder(InsertPoint.before(builder.insert(scf.YieldOp())))
    places = [add(builder, start, counter) for start, counter in zip(at, counters, strict=True)]
    within: SSAValue | None = None
    for place, start, size, bound in zip(places, at, box, whole.get_shape(), strict=True):
        if isinstance(start, int) and 0 <= start and start + size <= bound:
            continue
        # Below zero is far above the bound as an unsigned number.
        test = builder.insert(arith.CmpiOp(materialize(builder, place), materialize(builder, bound), "ult")).result
        within = test if within is None else builder.insert(arith.AndIOp(within, test)).result
    assert within is not None
    elsewhere = [materialize(builder, place) for place in places]
    if op.padding is not None:
        choice = builder.insert(scf.IfOp(within, [op.padding.type], Region(Block()), Region(Block())))
        inside, outside = (Builder(InsertPoint.at_end(region.block)) for region in choice.regions)
        inside.insert(scf.YieldOp(inside.insert(memref.LoadOp.get(op.source, elsewhere)).res))
        outside.insert(scf.YieldOp(op.padding))
        builder.insert(memref.StoreOp.get(choice.results[0], op.dest, counters))
    else:
        choice = builder.insert(scf.IfOp(within, [], Region(Block())))
        inner = Builder(InsertPoint.at_end(choice.true_region.block))
        value = inner.insert(memref.LoadOp.get(op.source, counters)).res
        inner.insert(memref.StoreOp.get(value, op.dest, elsewhere))
        inner.insert(scf.YieldOp())


def _prune(held: dict[str, Attribute]) -> dict[str, Attribute]:
    """Without what only our passes ask for."""
    return {name: value for name, value in held.items() if name != _DEVICE and name.split(".")[0] not in _OURS}


def _retype(op: Operation) -> None:
    """Take from an op the scopes of its values, and the attributes that are ours."""
    for name in set(op.attributes) - set(_prune(op.attributes)):
        del op.attributes[name]
    for result in op.results:
        if (type := _without_space(result.type)) != result.type:
            Rewriter.replace_value_with_new_type(result, type)
    for block in (block for region in op.regions for block in region.blocks):
        for arg in list(block.args):
            if (type := _without_space(arg.type)) != arg.type:
                Rewriter.replace_value_with_new_type(arg, type)
    if isinstance(op, FuncOp):
        types = op.function_type
        op.function_type = FunctionType.from_lists(
            [_without_space(type) for type in types.inputs], [_without_space(type) for type in types.outputs]
        )
        for name in ("arg_attrs", "res_attrs"):
            listed = op.properties.pop(name, None)
            if isa(listed, ArrayAttr[DictionaryAttr]) and any(kept := [_prune(dict(entry.data)) for entry in listed]):
                op.properties[name] = ArrayAttr([DictionaryAttr(entry) for entry in kept])


def _arrays(module: ModuleOp) -> dict[str, memref.GlobalOp]:
    """An array of bytes for each scope, and for the arena, as long as its buffers reach."""
    reached: dict[str, int] = {}
    for op in module.walk():
        if isinstance(op, ScopedAllocation):
            scope = op.scope or ARENA
            reached[scope] = max(reached.get(scope, 0), op.planned_offset() + op.size_in_bytes)
    taken = {name.data for op in module.ops if isinstance(name := op.get_attr_or_prop("sym_name"), StringAttr)}
    made: dict[str, memref.GlobalOp] = {}
    for scope, size in reached.items():
        name = scope
        while name in taken:
            name += "_"
        taken.add(name)
        made[scope] = memref.GlobalOp.get(
            StringAttr(name), MemRefType(i8, [size]), UnitAttr(), alignment=IntegerAttr(ALIGNMENT, i64)
        )
    return made


class LowerToUpstreamPass(ModulePass):
    """
    Turn a planned program at loop level into MLIR's own dialects, which mlir-opt lowers to machine code.

    Requires that every buffer has an offset (`mem-plan`). Each scope, and the arena off chip, becomes one global array
    of bytes, and a buffer a `memref.view` of it at its offset; memrefs lose their scopes. A `mem.copy` becomes a
    subview and a `linalg.generic` where its window is known to lie inside, else loops that ask of every element
    whether it does. The machine and the attributes of our dialects go; `@main` can be called from C,
    by the interface that MLIR gives it. Arguments keep their order: inputs, weights, outputs.

    Raises UserError, located, for a buffer without an offset, and for what is left of our dialects.

    Before:
    ```mlir
    func.func @main(%x: memref<4x4xf32>, %y: memref<6x4xf32>) {
      %zero = arith.constant 0.000000e+00 : f32
      %b = mem.buffer at 64 : memref<6x4xf32, "spad">
      mem.copy %x[-1, 0] to %b else %zero : memref<4x4xf32> to memref<6x4xf32, "spad">
      mem.copy %b to %y : memref<6x4xf32, "spad"> to memref<6x4xf32>
      func.return
    }
    ```
    After (`lower-to-upstream`):
    ```mlir
    "memref.global"() <{sym_name = "spad", type = memref<160xi8>, initial_value, sym_visibility = "private",
                        alignment = 64 : i64}> : () -> ()
    func.func @main(%x: memref<4x4xf32>, %y: memref<6x4xf32>) attributes {llvm.emit_c_interface} {
      %spad = memref.get_global @spad : memref<160xi8>
      %zero = arith.constant 0.000000e+00 : f32
      %0 = arith.constant 64 : index
      %b = memref.view %spad[%0][] : memref<160xi8> to memref<6x4xf32>
      %1 = arith.constant 0 : index
      %2 = arith.constant 6 : index
      %3 = arith.constant 1 : index
      scf.for %4 = %1 to %2 step %3 {
        %5 = arith.constant 0 : index
        %6 = arith.constant 4 : index
        %7 = arith.constant 1 : index
        scf.for %8 = %5 to %6 step %7 {
          %9 = arith.constant -1 : index
          %10 = arith.addi %9, %4 : index
          %11 = arith.constant 4 : index
          %12 = arith.cmpi ult, %10, %11 : index
          %13 = scf.if %12 -> (f32) {
            %14 = memref.load %x[%10, %8] : memref<4x4xf32>
            scf.yield %14 : f32
          } else {
            scf.yield %zero : f32
          }
          memref.store %13, %b[%4, %8] : memref<6x4xf32>
        }
      }
      linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                      iterator_types = ["parallel", "parallel"]}
          ins(%b : memref<6x4xf32>) outs(%y : memref<6x4xf32>) {
      ^bb0(%15: f32, %16: f32):
        linalg.yield %15 : f32
      }
      func.return
    }
    ```
    """

    name = "lower-to-upstream"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        arrays = _arrays(op)
        for inner in list(op.ops):
            if isinstance(inner, TargetOp):
                Rewriter.erase_op(inner)
            elif isinstance(inner, FuncOp) and inner.body.blocks:
                _Function(inner, arrays).run()
        for inner in op.walk():
            if (dialect := inner.name.split(".")[0]) in _OURS:
                raise UserError(
                    f"{inner.name} is not lowered to MLIR's own dialects",
                    loc=location_of(inner),
                    notes=[f"it is of the {dialect} dialect; lower the program to the loop level first"],
                    status=UNSUPPORTED,
                )
        for inner in list(op.walk()):
            _retype(inner)
            if isinstance(inner, FuncOp) and inner.sym_name.data == "main":
                inner.attributes["llvm.emit_c_interface"] = UnitAttr()
        builder = Builder(InsertPoint.at_start(op.body.block))
        for array in arrays.values():
            builder.insert(array)
