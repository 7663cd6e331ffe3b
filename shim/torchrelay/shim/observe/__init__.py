"""What the outside learns of a rank: the report, what its threads do, why it is unprotected; and faults that a user has ordered.

Only `recovery` and what lies above it may import it.
"""
