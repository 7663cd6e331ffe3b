"""One training step of a rank: its boundary, its gate, its update, and the way back."""
