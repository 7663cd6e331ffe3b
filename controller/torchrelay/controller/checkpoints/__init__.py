"""Just-in-time checkpoints on disk, and copies that ranks keep of their own state."""
