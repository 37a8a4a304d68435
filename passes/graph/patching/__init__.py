"""What `patch` is made of."""
