"""What a training process says to its agent, and hears from it."""
