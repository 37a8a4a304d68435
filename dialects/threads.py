# SPDX-License-Identifier: Apache-2.0
"""How many threads a program may have: without the IR, for plans run without it."""

MOST_THREADS = 1024
"""The most threads that a program has."""
