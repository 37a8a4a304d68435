"""What `merge-kernels` is made of."""
