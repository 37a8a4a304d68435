# SPDX-License-Identifier: Apache-2.0
"""Faults that are known and not mended: tests that are expected to fail, and fail the suite when they pass."""

from __future__ import annotations

KNOWN_FAULTS: dict[str, str] = {}
"""
By the id of a test, or by its id without parameters for all of them, the reason in a sentence. An entry goes with the
mend of its fault.
"""
