"""The bytes of tensors: read without a copy, summed up, compared, and followed. Knows nothing of steps or ranks.

Only `transfer` and what lies above it may import it.
"""
