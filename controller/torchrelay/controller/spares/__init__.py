"""Spares: how many there are, and whether each could take over, which rehearsals tell."""
