"""The webhook's certificates: made, stored, renewed while the server runs."""
