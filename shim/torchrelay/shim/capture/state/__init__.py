"""What a walk leaves: nodes, the edges between them, their keys, and which parts of an object are state."""
