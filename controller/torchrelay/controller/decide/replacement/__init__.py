"""Who takes over: spares and how many, processes that are started anew, moves that spread ranks."""
