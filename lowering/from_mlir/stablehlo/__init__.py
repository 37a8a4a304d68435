# SPDX-License-Identifier: Apache-2.0
"""Conversions of operations of StableHLO and CHLO; see https://openxla.org/stablehlo/spec."""
