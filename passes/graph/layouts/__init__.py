# SPDX-License-Identifier: Apache-2.0
"""What `layout` is made of: forms of values, rules of operators, preferences of machines, choice and emission."""
