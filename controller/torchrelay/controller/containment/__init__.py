"""What one job may cost a controller that has others, and what becomes of a job in which something of ours has failed."""
