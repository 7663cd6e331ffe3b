"""What a rank that stays does while another one is replaced, and what a joiner does just like it.

Only `step` and what lies above it may import it.
"""
