"""The primitives of schedules, a file each: importing this package registers all of them."""

from penstock.passes.schedule.primitives import (
    distribute,
    fuse,
    handles,
    interchange,
    peel,
    reorder,
    split,
    storage_align,
    tile,
    unroll,
    vectorize,
)

__all__ = [
    "distribute",
    "fuse",
    "handles",
    "interchange",
    "peel",
    "reorder",
    "split",
    "storage_align",
    "tile",
    "unroll",
    "vectorize",
]
