"""Who holds the same tensors, and copies of those that nobody else holds."""
