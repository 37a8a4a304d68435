# SPDX-License-Identifier: Apache-2.0
"""What `mem-promote` is made of: bytes of kernels, kernels with residents, the program as a problem, the rewrite."""
