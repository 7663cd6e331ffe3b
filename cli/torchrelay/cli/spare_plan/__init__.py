"""`torchrelay bench spares`: how many spares are worth their cost. A simulation: nothing is started."""
