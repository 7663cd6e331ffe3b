"""How a spare becomes a rank: set-up, the way to the boundary, its state, the rest of the step."""
