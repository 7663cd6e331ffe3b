"""The commands that read what is kept of each run."""
