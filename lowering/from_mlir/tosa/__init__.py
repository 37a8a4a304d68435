# SPDX-License-Identifier: Apache-2.0
"""Conversions of operations of TOSA; see https://www.mlplatform.org/tosa/tosa_spec.html."""
