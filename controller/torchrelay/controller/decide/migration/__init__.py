"""A migration: at which boundary all meet, who gives what, and what becomes of it with a new controller."""
