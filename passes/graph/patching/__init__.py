# SPDX-License-Identifier: Apache-2.0
"""What `patch` is made of."""
