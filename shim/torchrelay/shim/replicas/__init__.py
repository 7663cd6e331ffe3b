"""Who holds the same tensors, what a rank gives to others, and copies of what nobody else holds.

Only `observe` and what lies above it may import it.
"""
