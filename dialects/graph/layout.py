"""Layouts of images: where the channels and the spatial dimensions of a tensor are."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialects.graph.base import Tensor, require

NCHW = "NCHW"
"""The layout with the channels before the spatial dimensions, whatever their number."""
NHWC = "NHWC"
"""The layout with the channels innermost."""


def channel_axis(layout: str, rank: int) -> int:
    """The dimension of the channels of a tensor of `rank`; raises VerifyException for another layout."""
    require(layout in (NCHW, NHWC), f'the layout is "NCHW" or "NHWC", not "{layout}"')
    return 1 if layout == NCHW else rank - 1


def spatial_sizes(x: Tensor, layout: str) -> tuple[int, ...]:
    """The spatial sizes of a batch of images (or lines, or volumes)."""
    shape = x.get_shape()
    rank = len(shape)
    require(3 <= rank <= 5, f"{x} has {rank - 2} spatial dimensions, supported are 1 to 3")
    return shape[2:] if channel_axis(layout, rank) == 1 else shape[1:-1]


def with_channels(batch: int, channels: int, spatial: Sequence[int], layout: str) -> list[int]:
    """The shape of a batch of images."""
    return [batch, channels, *spatial] if layout == NCHW else [batch, *spatial, channels]
