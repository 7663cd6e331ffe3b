"""Adds the shim and the agent to annotated pods. Knows nothing else."""
