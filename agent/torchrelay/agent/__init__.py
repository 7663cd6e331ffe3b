"""The agent of one machine: starts and watches its training processes, and decides nothing."""
