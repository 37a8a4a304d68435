# SPDX-License-Identifier: Apache-2.0
"""What `rotate-carried` is made of."""
