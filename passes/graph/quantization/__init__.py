"""What `quantize` and `integer-arithmetic` are made of: scales, ranges, schemes and integer products."""
