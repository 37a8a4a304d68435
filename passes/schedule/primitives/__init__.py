"""The primitives of schedules, a file each: importing this package registers all of them."""

from penstock.passes.schedule.primitives import (
    bind,
    cooperate,
    distribute,
    fuse,
    handles,
    insert_barriers,
    interchange,
    parallel,
    peel,
    reorder,
    split,
    storage_align,
    tile,
    unroll,
    vectorize,
)

__all__ = [
    "bind",
    "cooperate",
    "distribute",
    "fuse",
    "handles",
    "insert_barriers",
    "interchange",
    "parallel",
    "peel",
    "reorder",
    "split",
    "storage_align",
    "tile",
    "unroll",
    "vectorize",
]
