"""Files that a job writes and that tell of its health: checkpoints, dumps."""
