"""One training step of a rank: which loop trains and is left, its boundary, its gate, its update, the way back.

The engine, which puts the parts of a rank together, is here. Only `join` and what lies above it may import it.
"""
