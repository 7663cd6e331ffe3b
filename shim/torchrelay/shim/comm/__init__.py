"""Communicators, and the script's collectives in them: recorded, answered, repeated."""
