"""The primitives of schedules, a file each: importing this package registers all of them."""

from penstock.passes.schedule.primitives import handles, tile

__all__ = ["handles", "tile"]
