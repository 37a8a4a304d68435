"""The primitives of schedules, a file each."""
