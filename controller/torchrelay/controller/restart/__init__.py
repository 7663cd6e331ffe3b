"""A job that cannot go on in the processes that it has, and begins again."""
