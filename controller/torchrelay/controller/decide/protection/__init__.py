"""How far a job is protected, what it lacks, and where copies of its state lie."""
