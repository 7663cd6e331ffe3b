"""The communicators of one generation after the other: how they are connected, exchanged, and broken."""
