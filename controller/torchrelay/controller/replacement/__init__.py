"""Who takes over a lost rank: a spare, a new process in its place, or one that others start again."""
