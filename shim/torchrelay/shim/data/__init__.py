"""Iterators and loaders: what they have yielded, so that a step can have it again, in this process or in another one.

Only `saves` and `replicas`, and what lies above them, may import it.
"""
