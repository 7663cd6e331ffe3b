"""Gathers evidence of what is wrong with a machine, its devices and its processes. The controller judges it."""
