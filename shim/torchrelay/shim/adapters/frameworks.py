"""Training loops that lie in installed packages: which functions of which modules have them.

Leans on the names below, which are private to their frameworks. Seen on transformers 5.23.0 and lightning 2.6.6; where a module
has none of its functions, another version has moved its loops, and the protection report says so.
"""

from __future__ import annotations

_LIGHTNING = {
    "loops.fit_loop": frozenset({"_FitLoop.run"}),
    "loops.training_epoch_loop": frozenset({"_TrainingEpochLoop.run"}),
}

TRAINING_LOOPS: dict[str, frozenset[str]] = {
    "transformers.trainer": frozenset({"Trainer._inner_training_loop", "Trainer._run_epoch"}),
    **{
        f"{package}.{name}": f
        for package in ("lightning.pytorch", "pytorch_lightning")
        for name, f in _LIGHTNING.items()
    },
}
"""Name of a module -> qualified names of the functions whose loops are rewritten; nothing else of an installed package is."""

ID_CACHES = frozenset({"_metric_attributes"})
"""Attributes of modules that are keyed by addresses, and made anew by whoever misses them (lightning): no state, and another
process's are of no use."""

ACCELERATE = "accelerate.data_loader"
"""The module whose loaders `accelerate_loader` knows."""
