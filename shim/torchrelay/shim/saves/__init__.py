"""Checkpoints that a thread writes while training goes on."""
