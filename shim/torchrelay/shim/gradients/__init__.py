"""Gradients that one step leaves to the next, as part of a rank's state."""
