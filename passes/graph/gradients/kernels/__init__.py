# SPDX-License-Identifier: Apache-2.0
"""Derivatives of kernels at tensor level: of a kernel of tensor expressions, another one that computes its adjoints."""
