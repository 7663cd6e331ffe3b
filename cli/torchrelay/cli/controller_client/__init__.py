"""How commands reach the controller of a job, ask it, and follow what it tells."""
