"""Rewriting of the modules of the user: which loops there are, what runs in place of their heads, which of them runs now.

What a loop means for training belongs to `step`. Only `journal` and what lies above it may import it.
"""
