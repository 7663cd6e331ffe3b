"""Communicators, the gate, and the collectives of the script: recorded, answered, repeated.

Only `saves` and `replicas`, and what lies above them, may import it.
"""
