# SPDX-License-Identifier: Apache-2.0
"""What `lift-cf-to-scf` is made of: control flow as a tree, how a graph of blocks becomes one, and the tree as IR."""
