"""What can be known to go wrong before anything starts: one list of checks, for `torchrelay run` and `torchrelay doctor`."""
