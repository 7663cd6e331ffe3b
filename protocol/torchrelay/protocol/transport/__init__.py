"""How messages travel: frames, protocol buffers, delivery in order, and the look at what comes in."""
