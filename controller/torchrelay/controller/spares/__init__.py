"""Spares: how many there are, which one takes over, and whether one could."""
