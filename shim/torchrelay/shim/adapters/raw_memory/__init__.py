"""What is read from this process's memory, since asking for it in each step would cost too much."""
