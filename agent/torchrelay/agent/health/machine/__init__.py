"""The machine: processors, memory, network, its kernel's log, and whether it is about to go."""
