"""Goes on by itself where a job cannot go on in its processes."""
