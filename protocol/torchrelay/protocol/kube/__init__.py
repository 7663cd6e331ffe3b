"""What webhook, controller and agents have to name alike in Kubernetes."""
