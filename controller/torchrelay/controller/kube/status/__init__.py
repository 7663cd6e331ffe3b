"""What a job's resources say about it. Pure: events in, statuses out."""
