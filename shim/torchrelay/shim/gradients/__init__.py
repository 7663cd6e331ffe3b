"""Gradients that one step leaves to the next, as part of what a rank has: which they are, and copies of them.

Only `saves` and `replicas`, and what lies above them, may import it.
"""
