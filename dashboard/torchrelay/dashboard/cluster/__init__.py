"""The dashboard of a cluster: it stands beside the controller, hears what that tells of all jobs, and serves the same page."""
