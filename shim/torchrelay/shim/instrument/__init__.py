"""Rewriting of the user's modules: which loops there are, and what runs in place of their heads."""
