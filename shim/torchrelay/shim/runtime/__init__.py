"""What this process is to the job: one object from the interpreter's start to its end, and what it consists of."""
