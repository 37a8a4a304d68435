"""
Kernels that are written as tiles, with loops of their own (an attention), on a machine: every op becomes an intrinsic.

A body of several operations is split, a reduction that no intrinsic accumulates is done by halves, numbers that no
intrinsic fills with are added to zero, and so is what is copied; where an intrinsic updates its output, an op starts
from an operand that is not read any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import AnyFloat, FloatAttr, TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr
from xdsl.rewriter import Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.access import COMMUTATIVE, access_of, in_place_variants
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.analysis.scope_paths import scope_path
from penstock.passes.tensor.bufferization.assignment import result_number
from penstock.passes.tensor.partition import Coverage, choose, is_fill, remark_on
from penstock.passes.tensor.pointwise import Dims, accumulate_in_place, dims, structured
from penstock.passes.tensor.split_bodies import split_bodies


def by_halves(generic: GenericOp) -> list[GenericOp] | None:
    """
    The generics that take the place of a reduction along one dim of its one input, in order; None for another op.

    Sums of 2^n numbers are those of a balanced tree, which rounds less than one after the other.
    """
    found = _Reduction.of(generic)
    return None if found is None else found.replace()


class _Reduction:
    """A generic `out[p] = combine(out[p], x[.., r, ..])`."""

    def __init__(self, generic: GenericOp, at: int):
        self._generic, self._at = generic, at
        self._ops: list[Operation] = []

    @staticmethod
    def of(generic: GenericOp) -> _Reduction | None:
        body, kinds = generic.body.block, [kind.data for kind in generic.iterator_types]
        if len(generic.inputs) != 1 or len(generic.outputs) != 1 or kinds.count(IteratorType.REDUCTION) != 1:
            return None
        combine, last = body.first_op, body.last_op
        if combine is None or last is None or combine.next_op is not last or combine.name not in COMMUTATIVE:
            return None
        if last.operands[0] is not combine.results[0] or set(combine.operands) != set(body.args):
            return None
        read, written = (attr.data for attr in generic.indexing_maps)
        reduced = AffineDimExpr(kinds.index(IteratorType.REDUCTION))
        rest = tuple(expr for expr in read.results if expr != reduced)
        is_plain = read.is_projected_permutation() and len(rest) == len(read.results) - 1 and rest == written.results
        return _Reduction(generic, read.results.index(reduced)) if is_plain else None

    def replace(self) -> list[GenericOp]:
        generic, source = self._generic, self._generic.inputs[0]
        rows = self._type(source).get_shape()[self._at]
        while rows > 1:
            half = rows // 2
            value = self._combined(self._rows(source, 0, half), self._rows(source, half, half), None)
            if rows % 2:
                first = self._rows(value, 0, 1)
                first = self._combined(first, self._rows(source, rows - 1, 1), first)
                value = first if half == 1 else self._put_back(first, value)
            source, rows = value, half
        output = generic.outputs[0]
        place = dims(len(self._type(output).get_shape()))
        read = [*place[: self._at], AffineExpr.constant(0), *place[self._at :]]
        self._ops.append(self._generic_of((output, place), (source, read), (output, place)))
        Rewriter.replace_op(generic, self._ops, [self._ops[-1].results[0]])
        return [op for op in self._ops if isinstance(op, GenericOp)]

    def _combined(self, one: SSAValue, other: SSAValue, dest: SSAValue | None) -> SSAValue:
        """Two slices of one shape, combined into `dest` or a new tensor."""
        if dest is None:
            empty = tensor.EmptyOp([], one.type)
            empty.tensor.name_hint = self._generic.results[0].name_hint
            self._ops.append(empty)
            dest = empty.tensor
        place = dims(len(self._type(one).get_shape()))
        self._ops.append(self._generic_of((one, place), (other, place), (dest, place)))
        return self._ops[-1].results[0]

    def _generic_of(
        self, one: tuple[SSAValue, Dims], other: tuple[SSAValue, Dims], output: tuple[SSAValue, Dims]
    ) -> GenericOp:
        generic = self._generic
        combine = generic.body.block.first_op
        assert combine is not None
        order = [generic.body.block.args[-1], generic.body.block.args[0]]

        def compute(block: Block) -> SSAValue:
            block.add_op(made := combine.clone(dict(zip(order, block.args, strict=False))))
            return made.results[0]

        return structured([one, other], output, compute, generic.location)

    def _rows(self, source: SSAValue, start: int, count: int) -> SSAValue:
        type = self._type(source)
        offsets, sizes = self._box(type.get_shape(), start, count)
        if sizes == list(type.get_shape()):
            return source
        sliced = tensor.ExtractSliceOp(source, offsets, sizes, [1] * len(sizes), TensorType(type.element_type, sizes))
        sliced.result.name_hint = source.name_hint
        self._ops.append(sliced)
        return sliced.result

    def _put_back(self, row: SSAValue, value: SSAValue) -> SSAValue:
        offsets, sizes = self._box(self._type(value).get_shape(), 0, 1)
        inserted = tensor.InsertSliceOp.get(row, value, sizes, offsets, [1] * len(sizes))
        self._ops.append(inserted)
        return inserted.result

    def _box(self, shape: Sequence[int], start: int, count: int) -> tuple[list[int], list[int]]:
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[self._at], sizes[self._at] = start, count
        return offsets, sizes

    @staticmethod
    def _type(value: SSAValue) -> TensorType[Attribute]:
        assert isa(value.type, TensorType)
        return value.type


_OPS = (
    arith.AddiOp,
    arith.ConstantOp,
    arith.MinSIOp,
    arith.MuliOp,
    func.FuncOp,
    func.ReturnOp,
    scf.ForOp,
    scf.YieldOp,
    tensor.EmptyOp,
    tensor.ExtractSliceOp,
    tensor.InsertSliceOp,
    # A slice of a pad is a copy of what it has of the source.
    tensor.PadOp,
    tensor.YieldOp,
    GenericOp,
)
"""What such a kernel consists of, besides the bodies of its generics."""


def cover_tiled(kernel: func.FuncOp, target: TargetOp) -> func.FuncOp | str:
    """
    A copy of `kernel`, whose loops are there already, of which every generic is an intrinsic of the machine; or the
    reason why there is none.
    """
    if not all(isinstance(op, _OPS) for op in _ops(kernel)):
        # Loops of indices in memory, which no machine follows.
        return "it computes nothing, and only moves elements"
    trial = kernel.clone()
    for generic in _generics(trial):
        for op in _as_intrinsics(generic, target):
            if (reason := _settle(op, target)) is not None:
                return remark_on(op, reason)
    for generic in _generics(trial):
        _reuse_what_dies(generic, target)
    return _misplaced(trial, target) or trial


def _ops(kernel: func.FuncOp) -> Iterator[Operation]:
    return (op for op in kernel.walk() if not isinstance(op.parent_op(), GenericOp))


def _generics(kernel: func.FuncOp) -> list[GenericOp]:
    return [op for op in _ops(kernel) if isinstance(op, GenericOp)]


# one op as several


def _as_intrinsics(generic: GenericOp, target: TargetOp) -> list[GenericOp]:
    """What takes the place of `generic`, in order; each of it may become an intrinsic, as far as its body goes."""
    if isinstance(choose(generic, target), Coverage):
        return [generic]
    if (halves := by_halves(generic)) is not None:
        return halves
    if (parts := _from_zero(generic)) is not None:
        return parts
    own = generic.outputs[0]
    pieces = split_bodies([generic], target)
    if len(pieces) == 1:
        return pieces
    if own not in pieces[0].inputs:
        _write_to(pieces[-1], own)
        return pieces
    for piece in pieces:
        # What was to be overwritten is overwritten by each in turn.
        if own in piece.inputs and piece.results[0].type == own.type:
            _write_to(piece, own)
            own = piece.results[0]
    return pieces


def _write_to(generic: GenericOp, dest: SSAValue) -> None:
    """Let the result of `generic` take the place of `dest`."""
    empty = generic.outputs[0].owner
    if dest.type == generic.results[0].type:
        generic.operands[len(generic.inputs)] = dest
        if isinstance(empty, tensor.EmptyOp) and not empty.tensor.uses:
            Rewriter.erase_op(empty)


def _from_zero(generic: GenericOp) -> list[GenericOp] | None:
    """A fill with a number that is not 0, or a copy, as zeros to which the number or the source is added."""
    yielded, type, dest = generic.body.block.last_op, generic.results[0].type, generic.outputs[0]
    assert yielded is not None
    assert isa(type, TensorType)
    element = type.element_type
    if not isinstance(element, AnyFloat):
        return None
    written = list(generic.indexing_maps)[-1].data.results
    value = yielded.operands[0]
    is_copy = len(generic.inputs) == 1 and value is generic.body.block.args[0]
    number = _number(value) if is_fill(generic) else None
    if not is_copy and not number:
        return None

    def constant(block: Block, value: float) -> SSAValue:
        block.add_op(made := arith.ConstantOp(FloatAttr(value, element)))
        return made.result

    def plus(block: Block) -> SSAValue:
        other = block.args[1] if number is None else constant(block, number)
        block.add_op(made := arith.AddfOp(block.args[0], other))
        return made.result

    zero = structured([], (dest, written), lambda block: constant(block, 0.0), generic.location)
    inputs: list[tuple[SSAValue, Dims]] = [(zero.results[0], written)]
    if is_copy:
        inputs.append((generic.inputs[0], next(iter(generic.indexing_maps)).data.results))
    total = structured(inputs, (zero.results[0], written), plus, generic.location)
    Rewriter.replace_op(generic, [zero, total], [total.results[0]])
    return [zero, total]


def _number(value: SSAValue) -> float | None:
    """The float that a constant is."""
    attr = value.owner.value if isinstance(value.owner, arith.ConstantOp) else None
    return attr.value.data if isinstance(attr, FloatAttr) else None


# the intrinsics


def _settle(generic: GenericOp, target: TargetOp) -> str | None:
    """Bring `generic` into the form of an intrinsic; the reason if there is none."""
    choice = choose(generic, target)
    if isinstance(choice, str):
        return choice
    access = access_of(generic)
    assert access is not None
    matches, _ = candidates(access, target)
    if matches:
        return None
    # Only intrinsics that update their output: they overwrite what is written here anyway, or what is read last here.
    numbers = [number for number, variant in in_place_variants(access) if candidates(variant, target)[0]]
    numbers.sort(key=lambda number: generic.inputs[number] is not generic.outputs[0])
    for number in numbers:
        value = generic.inputs[number]
        if value is generic.outputs[0] or _is_read_last(value, generic):
            accumulate_in_place(generic, number)
            return None
    return f"@{choice.match.intrinsic.sym_name.data} overwrites an operand that is read again"


def _reuse_what_dies(generic: GenericOp, target: TargetOp) -> None:
    """Let the result of `generic` take the place of an operand that it reads last, element for element."""
    number, maps = len(generic.inputs), [attr.data for attr in generic.indexing_maps]
    if generic.body.block.args[-1].uses or not isinstance(generic.outputs[0].owner, tensor.EmptyOp):
        return
    access = access_of(generic)
    assert access is not None
    match = candidates(access, target)[0][0]
    for each, value in enumerate(generic.inputs):
        same = value.type == generic.results[0].type and maps[each] == maps[number]
        if same and match.scope_of_operand(each) == match.scope_of_operand(number) and _is_read_last(value, generic):
            generic.operands[number] = value
            return


def _is_read_last(value: SSAValue, op: Operation) -> bool:
    """Whether `value` is computed in the block of `op`, and nothing reads it after `op`."""
    owner = value.owner
    if not isinstance(owner, GenericOp | scf.ForOp) or owner.parent is not op.parent:
        return False
    users = {use.operation for use in value.uses}
    return all(user is op or (user.parent is op.parent and user.is_before_in_block(op)) for user in users)


# scopes


def _misplaced(kernel: func.FuncOp, target: TargetOp) -> str | None:
    """Why the tiles of a kernel cannot be where its intrinsics want them, if that is so."""
    generics = _generics(kernel)
    matches: dict[GenericOp, Match] = {}
    for generic in generics:
        access = access_of(generic)
        assert access is not None
        matches[generic] = candidates(access, target)[0][0]
    held: dict[tuple[SSAValue, str], int] = {}
    for generic in generics:
        for number, value in enumerate(generic.operands):
            scope = matches[generic].scope_of_operand(number)
            producer = _made_by(value)
            here = DRAM if producer is None else matches[producer].scope_of_operand(len(producer.inputs))
            if producer is not None and here != scope and scope_path(target, here, scope) is None:
                return remark_on(
                    generic,
                    f'@{matches[generic].intrinsic.sym_name.data} needs in "{scope}" what '
                    f'@{matches[producer].intrinsic.sym_name.data} leaves in "{here}", and no engine leads there',
                )
            if scope != DRAM:
                held[_storage(value), scope] = _bytes_in(value, target.scope(scope).granule_bytes)
    for name, scope in target.scopes().items():
        needed = sum(size for (_, where), size in held.items() if where == name)
        if needed > scope.size_bytes:
            return f'its tiles need {needed:,} bytes of scope "{name}", which has {scope.size_bytes:,}'
    return None


def _made_by(value: SSAValue) -> GenericOp | None:
    """The op that computed a tile, through loops; None for what comes from off chip, and for an empty tensor."""
    root = _root(value)
    if isinstance(root.owner, GenericOp):
        return root.owner
    return None


def _root(value: SSAValue) -> SSAValue:
    """What computed a tile, or the slice of what is off chip that it is."""
    while True:
        owner = value.owner
        if isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if not isinstance(loop, scf.ForOp) or value.index == 0:
                return value
            value = loop.iter_args[value.index - 1]
        elif isinstance(owner, scf.ForOp):
            value = owner.iter_args[result_number(value)]
        elif isinstance(owner, tensor.InsertSliceOp):
            value = owner.dest
        elif isinstance(owner, tensor.ExtractSliceOp):
            source = _root(owner.source)
            if not isinstance(source.owner, GenericOp):
                return value
            value = source
        else:
            return value


def _storage(value: SSAValue) -> SSAValue:
    """The tensor whose bytes a tile has: an op writes where its output operand is."""
    while isinstance((root := _root(value)).owner, GenericOp):
        value = root.owner.outputs[0]
    return root


def _bytes_in(value: SSAValue, granule: int) -> int:
    """The bytes of the buffer of a tile, its rows rounded up to the granule."""
    storage = _storage(value)
    assert isa(storage.type, TensorType)
    *outer, row = storage.type.get_shape() or (1,)
    return prod(outer) * -(-row * element_bytes(storage.type) // granule) * granule
