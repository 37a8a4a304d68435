"""What `lift-cf-to-scf` is made of: control flow as a tree, how a graph of blocks becomes one, and the tree as IR."""
