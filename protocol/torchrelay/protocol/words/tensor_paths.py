"""Name what paths of tensors begin with, where controller and shim both read it."""

from __future__ import annotations

OPTIMIZER = "optimizer"
"""Paths of what optimizers keep begin with this, and the optimizer's number."""
