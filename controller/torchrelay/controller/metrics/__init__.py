"""What the controller tells Prometheus: events are counted, and the rest is read off its state when it is asked."""
