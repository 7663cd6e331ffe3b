"""Finds the state: a walk from scratch, and one that goes on from an earlier one and looks only at what may differ.

Nothing else within `capture` may import it.
"""
