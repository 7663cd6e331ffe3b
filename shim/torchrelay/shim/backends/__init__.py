"""The communication libraries that a process group can be moved with: one file each, behind one interface.

It may import the adapters; communicators and everything above them import it.
"""
