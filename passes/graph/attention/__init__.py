"""What `fuse-attention` is made of: the pattern, and what a machine must be able to do for it."""
