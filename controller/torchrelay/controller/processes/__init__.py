"""The job's training processes: who is let in, what they say, how they end, which of them hang, and who is started anew."""
