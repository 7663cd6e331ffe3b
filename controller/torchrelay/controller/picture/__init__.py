"""What the controller knows of the job. It decides nothing."""
