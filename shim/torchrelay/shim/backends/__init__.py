"""The communication libraries that a process group can be moved with: one file each, behind one interface.

Only `tensors` and what lies above it may import it.
"""
