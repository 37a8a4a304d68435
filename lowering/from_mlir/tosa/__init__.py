"""Conversions of operations of TOSA; see https://www.mlplatform.org/tosa/tosa_spec.html."""
