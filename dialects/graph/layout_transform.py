"""The change of layout of a tensor."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    is_static,
    require,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.layout import common_sizes, layout_of_rank, parse_layout, steps_between


@irdl_op_definition
class LayoutTransformOp(GraphOp):
    """
    `x`, stored in the layout `source`, in the layout `target` of the same dimensions.

    Where the last block of a dimension hangs over, what is beyond the dimension is zeros in the result. The way back
    from blocks does not know where the dimension ended: the type of the result says so, and must be one of those
    that are stored in the shape of `x`.
    """

    name = "graph.layout_transform"

    x = operand_def(TENSOR)
    source = prop_def(StringAttr)
    target = prop_def(StringAttr)

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$x `from` $source `to` $target attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, *, source: str, target: str, result_type: Tensor | None = None):
        inferred = result_type or self.infer(tensor_of(x), source, target)
        super().__init__(x, source=source, target=target, result_type=inferred)

    @classmethod
    def infer(cls, x: Tensor, source: str, target: str, stated: Tensor | None = None) -> Tensor:
        """`x` in the layout `target`: of the sizes `stated` where they fit, else of all that `x` has room for."""
        shape = x.get_shape()
        held = layout_of_rank(source, len(shape))
        wanted = parse_layout(target)
        if "HW" in source and "HW" in target and "D" not in wanted.dims:
            spatial = "".join(dim for dim in held.dims if dim in "DHW")
            wanted = parse_layout(target.replace("HW", spatial))
        require(
            sorted(held.dims) == sorted(wanted.dims),
            f'the layouts "{held}" and "{wanted}" do not have the same dimensions',
        )
        inferred = wanted.shape(held.extents(shape))
        if stated is not None and is_static(x) and is_static(stated) and stated.get_num_dims() == wanted.rank:
            sizes = stated.get_shape()
            blocks = [(size, part.block) for size, part in zip(sizes, wanted.parts, strict=True)]
            if all(block in (None, size) for size, block in blocks) and common_sizes(held, wanted, shape, sizes):
                inferred = list(sizes)
        if is_static(x):
            steps_between(held, wanted, shape, inferred)
        return tensor_type(x.element_type, inferred)

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.source.data, self.target.data, self.result_type)

    @property
    def is_view(self) -> bool:
        """Whether no element moves and none is added or left out: it only gives the elements other indices."""
        shape, result = tensor_of(self.x).get_shape(), self.result_type.get_shape()
        source, target = layout_of_rank(self.source.data, len(shape)), layout_of_rank(self.target.data, len(result))
        return steps_between(source, target, shape, result).is_view(shape, result)
