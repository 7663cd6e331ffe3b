"""`torchrelay bench scaling`: what a migration costs in large jobs, measured where it can be and reckoned beyond."""
