# SPDX-License-Identifier: Apache-2.0
"""What `graph-fuse` is made of: the algorithm on plain data, the nodes of a graph, a model of scratchpads, remarks."""
