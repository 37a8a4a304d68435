"""What `accel-pipeline` is made of: which buffers become rings, how deep, where they lie, and the skew of loops."""
