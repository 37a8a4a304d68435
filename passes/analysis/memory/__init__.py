# SPDX-License-Identifier: Apache-2.0
"""What happens to memory along the paths of a function: the parts of `passes/analysis/memory/liveness.py`."""
