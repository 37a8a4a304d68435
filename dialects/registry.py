# SPDX-License-Identifier: Apache-2.0
"""What a pass or an interpreter knows about ops, class by class: the door through which packages add their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from xdsl.ir import Operation

Function = TypeVar("Function", bound=Callable[..., Any])
Given = TypeVar("Given", bound=Callable[..., Any])


class Registry(dict[type[Operation], Function], Generic[Function]):
    """Class of ops -> the function for it, and for the classes derived from it that have none of their own."""

    def register(self, *classes: type[Operation]) -> Callable[[Given], Given]:
        """Register the decorated function for `classes`."""

        def add(function: Given) -> Given:
            for op_class in classes:
                self[op_class] = cast(Function, function)
            return function

        return add

    def find(self, op_class: type[Operation]) -> Function | None:
        """The function for a class, or for the nearest of its bases."""
        return next((self[base] for base in op_class.__mro__ if base in self), None)
