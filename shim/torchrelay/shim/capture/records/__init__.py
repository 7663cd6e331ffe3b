"""A host state as a record: written down, compared with another one, put back here or in another process.

Nothing else within `capture` may import it.
"""
