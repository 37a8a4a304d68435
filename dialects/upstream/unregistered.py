# SPDX-License-Identifier: Apache-2.0
"""
Operations that no dialect registers: what xDSL 0.74 gets wrong, attached to its class when this module is imported.

Nothing is known of such an operation. It may be a terminator, and its regions may do without one; xDSL says that it
has every other trait as well: isolated from above, so that a region of it could not use values from outside, and free
of effects, so that passes could remove or move it. And all of them are called `builtin.unregistered` in messages; here
each has its own name.
"""

from __future__ import annotations

from xdsl.dialects.builtin import UnregisteredOp
from xdsl.ir import Operation
from xdsl.traits import IsTerminator, NoTerminator, OpTrait

_ASSUMED = (IsTerminator, NoTerminator)
"""What is believed of an operation to be on the safe side."""

_with_name = UnregisteredOp.with_name


def _named(name: str) -> type[Operation]:
    made = _with_name(name)
    if "." in name:
        made.name = name
    return made


def _has_trait(
    cls: type[UnregisteredOp], trait: type[OpTrait] | OpTrait, *, value_if_unregistered: bool = True
) -> bool:
    kind = trait if isinstance(trait, type) else type(trait)
    return value_if_unregistered and kind in _ASSUMED


setattr(UnregisteredOp, "with_name", staticmethod(_named))
setattr(UnregisteredOp, "has_trait", classmethod(_has_trait))
