"""Options of `torchrelay run` that several parts read: the one parser of each."""
