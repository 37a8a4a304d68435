# SPDX-License-Identifier: Apache-2.0
"""What `quantize` and `integer-arithmetic` are made of: scales, ranges, schemes and integer products."""
