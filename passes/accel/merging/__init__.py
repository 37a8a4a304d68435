# SPDX-License-Identifier: Apache-2.0
"""What `merge-kernels` is made of."""
