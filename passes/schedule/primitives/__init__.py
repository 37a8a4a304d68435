"""The primitives of schedules, a file each: importing this package registers all of them."""

from penstock.passes.schedule.primitives import (
    compute_at,
    distribute,
    fuse,
    handles,
    inline,
    interchange,
    peel,
    reorder,
    reverse_compute_at,
    rfactor,
    split,
    storage_align,
    tile,
    tune,
    unroll,
    vectorize,
)

__all__ = [
    "compute_at",
    "distribute",
    "fuse",
    "handles",
    "inline",
    "interchange",
    "peel",
    "reorder",
    "reverse_compute_at",
    "rfactor",
    "split",
    "storage_align",
    "tile",
    "tune",
    "unroll",
    "vectorize",
]
