"""What a rank's state is at a boundary: random generators, host state, device state; taken, put back, written down."""
