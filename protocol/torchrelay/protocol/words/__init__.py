"""The one home of words that all parts use: phases, positions, levels, causes."""
