# SPDX-License-Identifier: Apache-2.0
"""What `simplify` and `fold-scale` are made of: rules by theme, and what a rule is."""
