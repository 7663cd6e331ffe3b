"""The job's training processes: who is let in, what they say, how they end, and which of them hang."""
