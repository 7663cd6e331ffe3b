"""What Prometheus is told: the names, and how they are served."""
