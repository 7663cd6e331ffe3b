"""What one value of the script is by itself: its kind, what it holds, whether it equals another one. Knows no walk.

Within `capture` only `state` and what lies above it may import it.
"""
