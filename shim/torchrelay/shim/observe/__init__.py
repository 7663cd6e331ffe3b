"""What the outside learns of a rank: the report, and what its threads do; and faults that a user has ordered.

Only `recovery` and what lies above it may import it.
"""
