"""Decisions that only a cluster needs: pure functions, one policy a file."""
