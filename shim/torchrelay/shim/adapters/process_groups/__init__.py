"""torch's process groups: the communicators inside them, their stores, and the sockets below."""
