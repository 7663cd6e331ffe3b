"""What is kept of each run after its end, and the commands that read it."""
