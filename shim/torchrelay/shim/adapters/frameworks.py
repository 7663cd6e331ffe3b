"""Name installed packages of which something is known: exceptions from what holds for all packages.

Leans on names that are private to their packages. Seen on lightning 2.6.6, torchtitan 0.2.2, accelerate 1.15.0.
"""

from __future__ import annotations

NEVER_REWRITTEN = frozenset({"torch", "torchgen", "functorch", "numpy", "torchrelay"})
"""Top-level packages whose loops stay as they are, although torch's own code steps optimizers."""

GENERATORS: dict[str, frozenset[str]] = {"torchtitan.train": frozenset({"Trainer.batch_generator"})}
"""Generator functions that draw a training loop's batches, and for which there is a `capture.values.replay_point`."""

ID_CACHES = frozenset({"_metric_attributes"})
"""Attributes of modules that are keyed by addresses, and made anew by whoever misses them (lightning): no state, and another
process's are of no use."""

ACCELERATE = "accelerate.data_loader"
"""The module whose loaders `accelerate_loader` knows."""
