"""Training processes: how they are started, watched, looked into and ended, and where their output goes."""
