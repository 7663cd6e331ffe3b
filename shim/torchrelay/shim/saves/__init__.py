"""Checkpoints that a thread of the script writes while training goes on.

Only `observe` and what lies above it may import it.
"""
