"""The controller of a cluster: serves agents in pods, and looks after each job's objects there."""
