"""Models and optimizers: trees of modules, the tensors that they are bound to, and device state.

Within `capture` only `handlers` and what lies above them may import it.
"""
