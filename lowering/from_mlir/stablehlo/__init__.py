"""Conversions of operations of StableHLO and CHLO; see https://openxla.org/stablehlo/spec."""
