"""What a rank has at a boundary: random generators, host state, device state; taken, compared, put back, written down.

When that is done belongs above. Only `instrument` and what lies above it may import it.
"""
