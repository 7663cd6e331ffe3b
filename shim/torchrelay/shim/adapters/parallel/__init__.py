"""Modules that train one model on several ranks: DistributedDataParallel, fully_shard, and their hooks."""
