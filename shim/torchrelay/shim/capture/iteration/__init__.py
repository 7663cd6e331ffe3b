"""Where loaders, samplers, generators and iterators stand, and what drawing from them has changed.

Within `capture` only `handlers` and what lies above them may import it.
"""
