"""A job that begins again: with which machines, with the same program, from which folder."""
