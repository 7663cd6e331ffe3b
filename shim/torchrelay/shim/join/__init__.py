"""How a spare becomes a rank: set-up, the way to the boundary, its state, the rest of the step; and rehearsals of it.

Only `bootstrap` and what lies above it may import it.
"""
