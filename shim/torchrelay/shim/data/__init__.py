"""Iterators and loaders: what they have yielded, so that a step can have it again.."""
