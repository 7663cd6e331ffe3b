"""`torchrelay bench relay-score`: which share of failures leaves no trace in what training computes."""
