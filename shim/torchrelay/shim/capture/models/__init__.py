"""Models and optimizers: trees of modules, the tensors that they are bound to, and device state."""
