"""What `combine-matmuls` and `reorder-matmuls` are made of: siblings and chains of products."""
