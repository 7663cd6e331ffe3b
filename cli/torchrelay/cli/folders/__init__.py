"""Folders of commands: of runs and what is kept of them, of journals, of several machines, and copies of a script's own."""
