"""Several machines: which one is lost, and whose controller leads the job."""
