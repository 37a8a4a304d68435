# SPDX-License-Identifier: Apache-2.0
"""
The way out of the accel level for VTA: its 128-bit instructions and micro-operations, bit for bit.

- `isa`: what instructions are, as bytes and back; `disassembler`: as text and back;
- `module`: all launches of a program; `encoder`: one launch; `transfers`, `applications`: its parts;
- `stream`: a decoded stream as a `Program`, to be checked for hazards and timed.
"""
