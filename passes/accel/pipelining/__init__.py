# SPDX-License-Identifier: Apache-2.0
"""What `accel-pipeline` decides with: which buffers gain by a ring, and how deep, by a model of latency hiding."""
