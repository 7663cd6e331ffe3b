"""Devices as their drivers see them, and which worker uses which."""
