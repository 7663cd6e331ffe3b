"""`torchrelay bench race`: the same training and the same faults under several ways to survive them."""
