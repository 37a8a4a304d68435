"""What is sure to be complete when a command starts, as masks of the commands in the order in which they are issued."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.passes.accel.ordering.accesses import CommandInfo


@dataclass
class _Unit:
    started: int = 0
    all: int = 0
    alone: int = 0


@dataclass
class Progress:
    """The commands issued so far."""

    issued: int = 0
    done: list[int] = field(default_factory=list[int])
    """Of each command itself and all that is complete when it is."""
    _host: int = 0
    _units: dict[str, _Unit] = field(default_factory=dict[str, _Unit])

    def before(self, info: CommandInfo) -> int:
        """What is complete when this command, the next of its unit, starts, whatever it waits for."""
        unit = self._units.setdefault(info.unit, _Unit())
        return self._host | unit.started | (unit.all if info.alone else unit.alone)

    def issue(self, info: CommandInfo, covered: int) -> int:
        """Issue a command that starts when `covered` is complete; returns its number."""
        unit = self._units.setdefault(info.unit, _Unit())
        done = covered | 1 << self.issued
        self.done.append(done)
        unit.all |= done
        unit.started |= covered
        if not info.transfers:
            unit.alone |= done
        self.issued += 1
        return self.issued - 1

    def barrier(self) -> None:
        """Let the host wait for all of them."""
        self._host = (1 << self.issued) - 1


__all__ = ["Progress"]
