"""The C that the compiler writes, of programs and of the inner loops of solvers: the compiler, and the cached build."""
