# SPDX-License-Identifier: Apache-2.0
"""What tests of planners share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning import native


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No C compiler is found, whatever has been loaded before."""

    def no_library(*arguments: object) -> None:
        raise UserError("no C compiler is found")

    monkeypatch.setattr(native, "build_library", no_library)
    caches = (native._load, native.warn_without)  # pyright: ignore[reportPrivateUsage]
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()
