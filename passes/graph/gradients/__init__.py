# SPDX-License-Identifier: Apache-2.0
"""What `graph-gradient` is made of: adjoint code, and the rules of the operators by theme."""
