# SPDX-License-Identifier: Apache-2.0
"""Of a kernel at tensor level, the kernel that computes its adjoints: reverse mode over its structured ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX, AnyFloat, FunctionType, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.dialects.linalg.ops import GenericOp, IndexOp, YieldOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.passes.analysis.kernels import has_reduction
from penstock.passes.analysis.reductions import combiners
from penstock.passes.graph.gradients.kernels.scalars import adjoint_in, in_type
from penstock.passes.graph.gradients.kernels.scatter import NoGather, Terms, scattered
from penstock.passes.graph.values import erase_dead
from penstock.passes.scalar_body import Body
from penstock.passes.schedule.tile_nest import DimRange
from penstock.passes.shapes import element_of, shape_of
from penstock.passes.tensor.tensor_builder import TensorBuilder


def kernel_gradient(kernel: FuncOp, name: str, wanted: Sequence[int], seeded: Sequence[int]) -> FuncOp:
    """
    The function `name`, not yet in a module, that computes the adjoints of the arguments `wanted` of a kernel.

    It takes the arguments of the kernel, and then the adjoints of its results `seeded`. What it needs of the kernel it
    computes anew. The kernel is one block of tensor expressions: `linalg.generic` with affine maps, pads, slices and
    reshapes of static shapes.

    Raises UserError (unsupported, located at the op) for one without a derivative, such as a loop.
    """
    made = kernel.clone()
    made.sym_name = StringAttr(name)
    block = made.body.block
    last = block.last_op
    assert isinstance(last, ReturnOp)
    forward = [op for op in block.ops if op is not last]
    results = list(last.arguments)
    last.detach()
    last.erase()
    adjoints = _Adjoints(block, forward, [block.args[number] for number in wanted])
    for number in seeded:
        seed = block.insert_arg(results[number].type, len(block.args))
        seed.name_hint = f"{results[number].name_hint or 'result'}_seed"
        adjoints.add(results[number], lambda seed=seed: seed)
    for op in reversed(forward):
        adjoints.differentiate(op)
    code = adjoints.code
    code.location = kernel.location
    returned = [adjoints.of(block.args[number]) for number in wanted]
    code.block.add_op(end := ReturnOp(*returned))
    end.location = kernel.location
    erase_dead(block, Operation)
    made.function_type = FunctionType.from_lists(block.arg_types, [value.type for value in returned])
    made.arg_attrs = made.res_attrs = None
    return made


class _Adjoints:
    """The adjoints of the tensors of a kernel so far."""

    def __init__(self, block: Block, forward: Sequence[Operation], wanted: Sequence[SSAValue]):
        self.code = TensorBuilder(block)
        self._found: dict[SSAValue, SSAValue] = {}
        self._active = set(wanted)
        for op in forward:
            if any(operand in self._active for operand in _reads(op)):
                self._active.update(result for result in op.results if _is_float(result))

    def of(self, value: SSAValue) -> SSAValue:
        """The adjoint of a tensor: zeros if it influences nothing."""
        found = self._found.get(value)
        return self.code.fill(shape_of(value), element_of(value), 0) if found is None else found

    def add(self, value: SSAValue, share: Callable[[], SSAValue | None]) -> None:
        """Add to the adjoint of a tensor that is wanted; else the share is not even made."""
        if value not in self._active or (found := share()) is None:
            return
        before = self._found.get(value)
        found = found if before is None else self.code.map(lambda body, xs: body.add(xs[0], xs[1]), before, found)
        if found.name_hint is None and value.name_hint is not None:
            found.name_hint = f"{value.name_hint}_adjoint"
        self._found[value] = found

    def differentiate(self, op: Operation) -> None:
        """Add to the adjoints of what an op reads. Raises UserError, located at the op, if it has no derivative."""
        if not any(operand in self._active for operand in _reads(op)):
            return
        if not any(result in self._found for result in op.results):
            return
        seed = self._found[op.results[0]] if op.results[0] in self._found else None
        code = self.code
        code.location = op.location
        match op:
            case GenericOp() if len(op.outputs) == 1 and seed is not None:
                self._generic(op, seed)
            case tensor.PadOp() if not op.low and not op.high and seed is not None:
                low = op.static_low.get_values()
                self.add(op.source, lambda: code.slice(seed, [*map(DimRange, low, shape_of(op.source))]))
            case tensor.ExtractSliceOp() if _is_static(op) and seed is not None:
                self.add(op.source, lambda: self._within(seed, op))
            case tensor.InsertSliceOp() if _is_static(op) and seed is not None:
                sizes = op.static_sizes.get_values()
                spans = [*map(DimRange, op.static_offsets.get_values(), sizes)]
                # A dim of one element may be missing in what is inserted.
                self.add(op.source, lambda: code.reshape(code.slice(seed, spans), shape_of(op.source)))
                zeros = code.fill(sizes, element_of(op.source), 0)
                self.add(op.dest, lambda: code.insert(zeros, seed, spans))
            case tensor.CollapseShapeOp() | tensor.ExpandShapeOp() | tensor.ReshapeOp() if seed is not None:
                source = op.operands[0]
                self.add(source, lambda: code.reshape(seed, shape_of(source)))
            case tensor.InsertSliceOp() | tensor.ExtractSliceOp() if not _is_static(op):
                raise _refusal(op, "what is stored by parts lies together: a stride on the left has none")
            case _:
                why = "a kernel of tensor expressions has one, and not what a loop carries"
                raise _refusal(op, why if op.regions else "")

    def _within(self, seed: SSAValue, op: tensor.ExtractSliceOp) -> SSAValue:
        """The adjoint of a slice, with zeros for what it leaves out."""
        whole, low = shape_of(op.source), op.static_offsets.get_values()
        seed = self.code.reshape(seed, op.static_sizes.get_values())
        sizes = zip(whole, low, shape_of(seed), strict=True)
        return self.code.pad(seed, low, [size - first - length for size, first, length in sizes], 0)

    # structured ops

    def _generic(self, op: GenericOp, seed: SSAValue) -> None:
        block, output = op.body.block, op.outputs[0]
        maps = [attribute.data for attribute in op.indexing_maps]
        extents = tuple(op.get_static_loop_ranges())
        if not has_reduction(op):
            reads = range(len(op.operands)) if block.args[-1].uses else range(len(op.inputs))
            terms = _Element(op, _yielded(block), _ops(block))
            for number in reads:
                self._scatter(op, number, terms.of(number), [*_operands(op), (seed, maps[-1])], extents)
            return
        combiner = combiners(op).get(len(op.inputs))
        if combiner not in ("arith.addf", "arith.mulf", "arith.maximumf", "arith.minimumf"):
            raise _refusal(op, "of reductions, sums, products, maxima and minima have one")
        combine = _yielded(block).owner
        assert isinstance(combine, Operation)
        (term,) = (each for each in combine.operands if each is not block.args[-1])
        element = _Element(op, term, [each for each in _ops(block) if each is not combine])
        operands = list(_operands(op))
        if combiner == "arith.addf":
            self.add(output, lambda: seed)
            operands.append((seed, maps[-1]))
            compute = element.of
        elif output in self._active:
            raise _refusal(op, "its reduction starts from what is computed")
        elif combiner == "arith.mulf":
            whole = self._reduced(op, extents, element.other_than_zero, is_product=True)
            zeros = self._reduced(op, extents, element.is_zero)
            share = self.code.map(lambda body, xs: body.mul(xs[0], xs[1]), seed, output)
            operands += [(each, maps[-1]) for each in (share, whole, zeros)]
            compute = element.of_factor
        else:
            count = self._reduced(op, extents, element.is_taken)
            share = self.code.map(lambda body, xs: body.div(xs[0], xs[1]), seed, count)
            operands += [(share, maps[-1]), (op.results[0], maps[-1])]
            compute = element.of_taken
        for number in range(len(op.inputs)):
            self._scatter(op, number, compute(number), operands, extents)

    def _scatter(
        self,
        op: GenericOp,
        number: int,
        compute: Callable[[Body, Sequence[SSAValue]], SSAValue | None],
        operands: Sequence[tuple[SSAValue, AffineMap]],
        extents: tuple[int, ...],
    ) -> None:
        """Add to the adjoint of operand `number` what each point of the domain adds."""
        value = op.operands[number]
        seed = len(op.operands)
        zeroed = frozenset(range(seed, len(operands)))

        def share() -> SSAValue | None:
            probe = Block(arg_types=[element_of(each) for each, _ in operands])
            if compute(Body(probe, op.location), probe.args) is None:
                return None
            terms = Terms(extents, operands, seed, zeroed, compute)  # pyright: ignore[reportArgumentType]
            try:
                return scattered(self.code, terms, list(op.indexing_maps)[number].data, shape_of(value))
            except NoGather as error:
                raise _refusal(op, f"it {error}") from None

        self.add(value, share)

    def _reduced(
        self,
        op: GenericOp,
        extents: tuple[int, ...],
        compute: Callable[[Body, Sequence[SSAValue]], SSAValue],
        *,
        is_product: bool = False,
    ) -> SSAValue:
        """Another reduction over the points of `op`: of what `compute` makes of its operands and its result."""
        result = op.results[0], list(op.indexing_maps)[-1].data
        operands = [*_operands(op), result]
        terms = Terms(extents, operands, len(operands) - 1, frozenset(), compute, is_product)
        return scattered(self.code, terms, result[1], shape_of(result[0]))


class _Element:
    """What the body of a generic computes at one point, without what combines points."""

    def __init__(self, op: GenericOp, value: SSAValue, ops: Sequence[Operation]):
        self._block = op.body.block
        self._value = value
        self._ops = ops

    def is_taken(self, body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        """1 where the value is the result, else 0."""
        _, value = self._copied(body, elements)
        return body.where(body.compare("eq", value, elements[-1]), body.like(1, value), body.like(0, value))

    def is_zero(self, body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        """1 where the value is 0, else 0."""
        _, value = self._copied(body, elements)
        zero = body.like(0, value)
        return body.where(body.compare("eq", value, zero), body.like(1, value), zero)

    def other_than_zero(self, body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        """The value, and 1 where it is 0."""
        _, value = self._copied(body, elements)
        return body.where(body.compare("eq", value, body.like(0, value)), body.like(1, value), value)

    def of(self, number: int) -> Callable[[Body, Sequence[SSAValue]], SSAValue | None]:
        """The adjoint of the element of an operand; the adjoint of the value follows the operands."""

        def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue | None:
            ops, value = self._copied(body, elements)
            seed = in_type(body, elements[len(self._block.args)], value.type)
            return adjoint_in(body, ops, value, seed, elements[number])

        return compute

    def of_taken(self, number: int) -> Callable[[Body, Sequence[SSAValue]], SSAValue | None]:
        """As `of`, where the value is equal to what follows the adjoint, else zero."""

        def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue | None:
            ops, value = self._copied(body, elements)
            share, taken = elements[len(self._block.args) :][:2]
            seed = body.where(body.compare("eq", value, taken), share, body.like(0, share))
            return adjoint_in(body, ops, value, seed, elements[number])

        return compute

    def of_factor(self, number: int) -> Callable[[Body, Sequence[SSAValue]], SSAValue | None]:
        """As `of`, times the other factors: from the product of those that are not 0, and how many are."""

        def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue | None:
            ops, value = self._copied(body, elements)
            share, whole, zeros = elements[len(self._block.args) :][:3]
            zero, one = body.like(0, value), body.like(1, value)
            is_zero = body.compare("eq", value, zero)
            rest = body.div(whole, body.where(is_zero, one, value))
            others = body.where(body.compare("eq", zeros, body.where(is_zero, one, zero)), rest, zero)
            return adjoint_in(body, ops, value, body.mul(share, others), elements[number])

        return compute

    def _copied(self, body: Body, elements: Sequence[SSAValue]) -> tuple[list[Operation], SSAValue]:
        values: dict[SSAValue, SSAValue] = dict(zip(self._block.args, elements, strict=False))
        ops: list[Operation] = []
        for op in self._ops:
            if isinstance(op, IndexOp):
                values[op.result] = body.index(op.dim.value.data)
                continue
            copy = op.clone(value_mapper=values)
            body.block.add_op(copy)
            ops.append(copy)
        return ops, values[self._value]


def _operands(op: GenericOp) -> list[tuple[SSAValue, AffineMap]]:
    maps = [attribute.data for attribute in op.indexing_maps]
    return list(zip(op.operands, maps, strict=True))


def _ops(block: Block) -> list[Operation]:
    return [op for op in block.ops if not isinstance(op, YieldOp)]


def _yielded(block: Block) -> SSAValue:
    assert block.last_op is not None
    return block.last_op.operands[0]


def _reads(op: Operation) -> Sequence[SSAValue]:
    """What an op, or what is in it, reads."""
    return [operand for each in op.walk() for operand in each.operands]


def _is_float(value: SSAValue) -> bool:
    return isa(value.type, TensorType) and isinstance(value.type.element_type, AnyFloat)


def _is_static(op: tensor.ExtractSliceOp | tensor.InsertSliceOp) -> bool:
    steps = op.static_strides.get_values()
    return DYNAMIC_INDEX not in op.static_offsets.get_values() and all(step == 1 for step in steps)


def _refusal(op: Operation, why: str = "") -> UserError:
    return UserError(
        f"{op.name} has no derivative", loc=location_of(op), notes=[why] if why else [], status=UNSUPPORTED
    )
