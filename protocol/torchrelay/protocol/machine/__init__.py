"""What all parts need of the machine: folders, addresses, memory, processes. Standard library only."""
