"""A pod in, what is added to it out. Reads and writes nothing else."""
