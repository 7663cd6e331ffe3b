"""The journal of a rank: what stands in it, and who writes it where."""
