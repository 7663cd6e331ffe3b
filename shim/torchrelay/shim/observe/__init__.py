"""What the outside learns of a rank: the report, faults to order, what its threads do."""
