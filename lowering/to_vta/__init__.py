"""
The way out of the accel level for VTA: its 128-bit instructions and micro-operations, bit for bit.

- `isa`: what instructions are; `words`: as bytes and back; `disassembler`: as text and back;
- `module`: all launches of a program; `encoder`: one launch; `transfers`, `applications`, `micro_ops`: its parts;
- `cycles`, `accesses`: a decoded stream as a `Program`, to be checked for hazards and timed.
"""
