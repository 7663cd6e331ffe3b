"""Which jobs there are, which agent belongs to which, and a task for each."""
