"""The training processes as the kernel sees them."""
