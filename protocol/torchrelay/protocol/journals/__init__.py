"""Journals and copies of state: the form in which the shim writes them and agents read them."""
