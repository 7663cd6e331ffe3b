"""What the relay score and the drill share: faults as cells, runs that are struck by them, and what became of each."""
