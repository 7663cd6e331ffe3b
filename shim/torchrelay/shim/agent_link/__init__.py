"""What a training process says to its agent, and hears from it: the socket, its configuration, how a process ends or starts over.

What an order means for training belongs above. Only `adapters` and what lies above them may import it.
"""
