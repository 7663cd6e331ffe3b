"""The dashboard of a cluster. It runs beside the controller, which tells it of all jobs, and serves the same page."""
