"""The primitives of schedules, a file each: importing this package registers all of them."""

from penstock.passes.schedule.primitives import handles, set_scope, stage_in, stage_out, tensorize, tile

__all__ = ["handles", "set_scope", "stage_in", "stage_out", "tensorize", "tile"]
