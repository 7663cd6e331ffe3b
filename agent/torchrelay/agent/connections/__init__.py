"""The stream to the controller and the socket of the processes: what is said on them, and how often."""
